"""Bayesian optimization of several outcomes: constraints that drift, and several objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from torch import Tensor

from tvbo.acquisition import UCB, AtPresent, Goals, constrained
from tvbo.acquisition.analytic import marginals, posterior_mean
from tvbo.optim import maximize
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pareto import pareto_actions
from tvbo.optimizers.recommendation import Recommendation
from tvbo.optimizers.trial_log import LostTrial
from tvbo.randomness import copy_of
from tvbo.spaces import (
    AskContext,
    Context,
    Labels,
    SearchSpace,
    Table,
    Time,
)
from tvbo.spaces.observations import Observations, provided
from tvbo.storage.recorded import Event
from tvbo.trial import Trial


class MultiOutcomeOptimizer(GPOptimizer):
    """Bayesian optimization of an objective under constraints, or of several objectives.

    Each outcome has a model of its own, with its own drift, hyperparameters and retention; all are
    told together. The acquisition is maximized over the actions that satisfy all constraints with
    probability ``min_feasibility`` now (:class:`tvbo.acquisition.ChanceConstrained`), and its
    incumbent or baseline are feasible actions at the present. With several objectives, noisy
    expected hypervolume improvement (Daulton et al., 2021) takes the place of UCB. Recipes build
    this optimizer of the options ``objectives`` and ``constraints``.

    The loop learns where it is feasible from actions that probably are: it does not look for
    feasible actions far from those that it knows, beyond those that fill the space at first.

    Args:
        optimizers: An optimizer by name of each outcome, all over the same actions and contexts,
            such as recipes return; they are the parts of this one, and not used on their own any
            more. Search space, acquisition, start and generator are those of the first.
        goals: What is sought of the outcomes.

    Attributes:
        goals: The goals.
        others: The optimizers of the outcomes but the first, whose parts are this optimizer's own.

    Raises:
        ValueError: if the names are not those of the goals, a part has trials, or the acquisition
            is not one of several objectives where there are several.
        TypeError: if a part is another kind of optimizer.
    """

    def __init__(self, optimizers: Mapping[str, GPOptimizer], goals: Goals):
        if tuple(optimizers) != goals.names:
            raise ValueError(
                f"Expected optimizers of {', '.join(goals.names)}. Got {', '.join(optimizers)}."
            )
        first, *others = optimizers.values()
        for name, each in optimizers.items():
            if type(each) is not GPOptimizer:
                raise TypeError(
                    "Expected a recipe with a Gaussian process that keeps its observations, for "
                    f"several outcomes. Got {type(each).__name__} for {name}."
                )
            if each.num_trials or each.search_space.dim != first.search_space.dim:
                raise ValueError(f"Expected parts over one space, without trials. Got {each!r}.")
        if goals.num_objectives > 1 and not isinstance(first.acquisition, UCB | AtPresent):
            raise ValueError(
                "Expected an acquisition function of BoTorch for several objectives, or UCB, whose "
                "place noisy expected hypervolume improvement takes. "
                f"Got {first.acquisition!r}."
            )
        self.goals = goals
        super().__init__(
            first.search_space,
            first.posterior_state,
            first.acquisition,
            first.retention,
            first.layout,
            first.generator,
            first.contexts,
            first.pending,
            first.initial,
        )
        self.others = dict(zip(goals.names[1:], others, strict=True))
        for place, other in enumerate(others, start=1):
            other._is_objective = place < goals.num_objectives
            other.minimize = goals.names[place] in goals.minimized
            other.search_space, other.contexts = self.search_space, self.contexts
            other.generator = self.generator
            other._is_inner = True
        self.minimize = goals.names[0] in goals.minimized

    def recommend(
        self,
        context: Context | None = None,
        t: Time | None = None,
        *,
        choices: Table | None = None,
    ) -> Recommendation:
        """Return the feasible action with the best posterior mean of the objective.

        See :meth:`GPOptimizer.recommend`. Where no action satisfies the constraints with
        ``min_feasibility``, it is about the one that most probably does; its ``feasibility`` says
        so.

        Raises:
            ValueError: if there are several objectives, for which there is :meth:`front`.
        """
        if self.goals.num_objectives > 1:
            raise ValueError(
                "Expected one objective: of several, front() returns the best compromises. Got "
                f"{', '.join(self.goals.names[: self.goals.num_objectives])}."
            )
        return super().recommend(context, t, choices=choices)

    def front(
        self,
        context: Context | None = None,
        t: Time | None = None,
        num_points: int = 10,
        *,
        choices: Table | None = None,
    ) -> list[Recommendation]:
        """Return actions whose posterior means are Pareto-optimal at a time, in a context.

        Does not modify the optimizer.

        Args:
            context: The context, where contexts were declared.
            t: The time; None is that of the newest open ask or outcome.
            num_points: Largest number of actions; of more, those far from one another.
            choices: The actions to choose from, as of :meth:`ask`; None: all.

        Returns:
            Feasible actions none of which is better than another in all objectives, by the first
            objective, the best first. Where none is feasible enough, the one that most probably is.

        Raises:
            InputDataError, BotorchTensorDimensionError: as :meth:`recommend`.
        """
        context = self._check_context(context)
        t = self._time_of(t)
        self._look_at(t)
        space = self._space_among(choices)
        ask_context = replace(
            self._ask_context(t, context, space), generator=copy_of(self.generator)
        )
        X = pareto_actions(self._models, self.goals, ask_context, num_points)
        return [self._outlook(x, t, context) for x in X.split(1)]

    @property
    def _chooses_jointly(self) -> bool:
        return self.goals.num_objectives > 1 or super()._chooses_jointly

    @property
    def _models(self) -> list[Model]:
        return [provided(self._newest_model)] + [
            provided(other._newest_model) for other in self.others.values()
        ]

    def _read_labels(self) -> Labels:
        return replace(super()._read_labels(), outcomes=self.goals.names)

    @property
    def _signs(self) -> Tensor:
        return self.goals.signs

    def _discard(self, t: float) -> None:
        super()._discard(t)
        for other in self.others.values():
            other._newest_told = self._newest_told
            other._discard(t)

    def _condition(self, t: float) -> Model:
        for other in self.others.values():
            other._newest_model = other._condition(t)
        return super()._condition(t)

    def _look_at(self, t: float) -> Model:
        for other in self.others.values():
            other._look_at(t)
        return super()._look_at(t)

    def _acquisition_function(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        acquisition, models, k = self.acquisition, self._models, self.goals.num_objectives
        # Incumbents and baselines are feasible actions.
        ask_context = self._feasible(ask_context)
        if k == 1:
            acq_function = acquisition(model, ask_context)
        else:
            if not isinstance(acquisition, AtPresent):
                acquisition = AtPresent(
                    partial(qLogNoisyExpectedHypervolumeImprovement, prune_baseline=True)
                )
            acq_function = acquisition.of_objectives(models[:k], self.goals, ask_context)
        return constrained(acq_function, models, self.goals, ask_context)

    def _feasible(self, ask_context: AskContext) -> AskContext:
        """Return the context of an ask with those observations whose actions are feasible now.

        More probably than not; without such, the one that most probably is.
        """
        observations = ask_context.observations
        if not self.goals.limits or len(observations) == 0:
            return ask_context
        with torch.no_grad():
            rows = ask_context.rows_observed().unsqueeze(-2)
            feasibility = self.goals.log_feasibility(self._models, rows)
        enough = min(math.log(0.5), feasibility.max().item())
        return replace(ask_context, observations=observations[feasibility >= enough])

    def _best(
        self, model: Model, t: float, context: Tensor | None, search_space: SearchSpace
    ) -> Recommendation:
        ask_context = self._ask_context(t, context, search_space)
        mean = posterior_mean(model, ask_context)
        acq_function = constrained(
            mean, self._models, self.goals, replace(ask_context, generator=copy_of(self.generator))
        )
        X = maximize(acq_function, search_space, ask_context, copy_of(self.generator))
        return self._outlook(X, t, context)

    def _outlook(self, X: Tensor, t: float, context: Tensor | None) -> Recommendation:
        """Return what the newest models expect of an action."""
        rows = self._ask_context(t, context).rows(X).unsqueeze(-2)
        with torch.no_grad():
            moments = [marginals(model, rows) for model in self._models]
        (mean, deviation), *others = (
            (sign * mean.item(), variance.sqrt().item())
            for sign, (mean, variance) in zip(self._signs.tolist(), moments, strict=True)
        )
        found = self._recommendation(X, self._sign * mean, deviation, t, context)
        return replace(
            found,
            feasibility=self._feasibility(rows),
            others=dict(zip(self.others, others, strict=True)),
        )

    def _feasibility(self, rows: Tensor) -> float | None:
        """Return the probability that all constraints hold at a row, ``1 x 1 x d``."""
        if not self.goals.limits:
            return None
        with torch.no_grad():
            return self.goals.log_feasibility(self._models, rows).exp().item()

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        checks = [super()._check_outcome, *(other._check_outcome for other in self.others.values())]
        for place, (name, check) in enumerate(zip(self.goals.names, checks, strict=True)):
            try:
                check(trial, observation.outcome(place))
            except InputDataError as error:
                raise InputDataError(f"{error} For {name}.") from error

    def _learn(self, trial: Trial, observation: Observations) -> None:
        for place, other in enumerate(self.others.values(), start=1):
            outcome = observation.outcome(place)
            other._learn(trial, replace(outcome, X=other._row(trial)))
        # Last, since it lets go of the trial in all parts.
        super()._learn(trial, observation.outcome(0))

    def _judge(self, trial: Trial) -> Trial:
        if not self._is_starting():
            row = self._row(trial).unsqueeze(-2)
            trial = replace(trial, feasibility=self._feasibility(row))
        judged = [super()._admit(trial), *(other._admit(trial) for other in self.others.values())]
        trials = [each for each, _ in judged]
        gains = [each.information_gain for each in trials if each.information_gain is not None]
        trial = replace(
            trial,
            informative=any(each.informative for each in trials),
            information_gain=sum(gains) if gains else None,
            skipped=all(each.skipped for each in trials),
        )
        rejections = [rejection for _, rejection in judged if rejection is not None]
        # Rejected only where each outcome is; skipped only where none has to be measured.
        if not trial.informative:
            self.rejection_log.add(trial, min(rejections, key=lambda each: each.skip))
        return trial

    def _open_trial(self, trial: Trial) -> Trial:
        for other in self.others.values():
            other._open_trial(trial)
        return super()._open_trial(trial)

    def _forget(self, lost: LostTrial) -> None:
        for other in self.others.values():
            other._forget(lost)
        super()._forget(lost)

    def _let_go(self, trial: Trial) -> None:
        super()._let_go(trial)
        for other in self.others.values():
            other._let_go(trial)
            other._open.pop(trial.id, None)

    def _refits(self) -> list[Event]:
        each = [super()._refits(), *(other._refits() for other in self.others.values())]
        return [
            replace(
                event, fit={f"{name}: {key}": value for key, value in (event.fit or {}).items()}
            )
            for name, events in zip(self.goals.names, each, strict=True)
            for event in events
        ]
