"""Bayesian optimization by ask/tell with a Gaussian process for each outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, AtPresent, ConstantBeta, Goals, ThompsonSampling
from tvbo.acquisition.chance_constrained import constrained
from tvbo.acquisition.thompson import DrawnValues
from tvbo.fit.drift_estimate import DriftEstimate, estimate_drift
from tvbo.models.scale import standardized
from tvbo.optim.maximize import maximize
from tvbo.optim.space_filling import SpaceFilling
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.outcome_model import OutcomeModel
from tvbo.optimizers.pareto import pareto_actions
from tvbo.optimizers.pending import Hallucinate, Pending
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.randomness import copy_of
from tvbo.retention import Retention
from tvbo.spaces import AskContext, FiniteSpace
from tvbo.spaces.labels import OUTCOME, Context, Time, TimeScale
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.storage.event import Event
from tvbo.threads import threads_for
from tvbo.trial import Trial
from tvbo.values import Table


class GPOptimizer(Optimizer):
    """Bayesian optimization with a Gaussian process for each outcome, by ask/tell.

    Each ask discards the observations that retention no longer keeps, updates the posterior of each
    outcome, and maximizes the acquisition at the present time. Outcomes that come late enter with
    the time at which they were sampled. A trial says so where retention judges that its outcome is
    not worth having.

    A trial that failed or expired counts as pending still, until 20 outcomes of others were
    observed, one of the same action was, or retention would drop it. The least outcome held is then
    in the place of its own, if that is below what ``pending`` says; but not of the first that fails
    where others had outcomes, which may be chance. Outcomes far below all others are winsorized
    before they enter the model, and the first time a warning is logged; ``observations`` has them
    as they came.

    Under constraints, the acquisition is maximized over the actions that satisfy all of them with
    probability ``min_feasibility`` now (``ChanceConstrained``), and its
    incumbent or baseline are feasible actions at the present. With several objectives, noisy
    expected hypervolume improvement (Daulton et al., 2021) takes the place of UCB. The loop learns
    where it is feasible from actions that probably are: it does not look for feasible actions far
    from those that it knows, beyond those that fill the space at first.

    Args:
        search_space: The set of actions.
        outcome_models: The model of each outcome, the objectives first; they have one layout.
        acquisition: Builds the acquisition function: :class:`tvbo.acquisition.UCB`, or any function
            of a model and a :class:`tvbo.spaces.AskContext` to a BoTorch acquisition.
        generator: Source of every random choice; default a fresh one with seed 0.
        contexts: The contexts to expect; None where there are none.
        pending: What stands in for the outcomes of pending trials; default
            :class:`tvbo.optimizers.Hallucinate`, which changes nothing while none is pending. The
            papers that know no delay have :class:`tvbo.optimizers.IgnorePending`.
        initial: Number of actions that fill the space at first instead of maximizing the
            acquisition, on a finite set until each was tried once, and whose outcomes are never
            refused; default 0, in recipes what the first fit waits for.
        goals: What is sought of the outcomes; default the maximum of one.
        time_scale: The unit of timestamps; None where times are numbers.

    Attributes:
        outcome_models: The model of each outcome.
        goals: The goals.

    Raises:
        TypeError: if ``pending`` is no policy for pending trials.
        ValueError: if ``initial`` is not a whole number of at least 0, the models are not as many
            as the outcomes of the goals, or the acquisition is not one of several objectives where
            there are several.
    """

    _takes_requests = True

    def __init__(
        self,
        search_space: SearchSpace,
        outcome_models: Sequence[OutcomeModel],
        acquisition: Acquisition,
        generator: Generator | None = None,
        contexts: SearchSpace | None = None,
        pending: Pending | None = None,
        initial: int = 0,
        goals: Goals | None = None,
        time_scale: TimeScale | None = None,
    ):
        self.goals = Goals.of() if goals is None else goals
        names = self.goals.names
        if len(outcome_models) != len(names):
            raise ValueError(
                f"Expected a model for each of {', '.join(names)}. Got {len(outcome_models)}."
            )
        super().__init__(
            search_space,
            outcome_models[0].layout,
            generator,
            contexts,
            minimize=names[0] in self.goals.minimized,
            time_scale=time_scale,
            outcome_names=() if names == (OUTCOME,) else names,
        )
        self._signs = self.goals.signs
        if pending is not None and not isinstance(pending, Pending):
            raise TypeError(
                f"Expected a pending policy. Got {pending!r} of {type(pending).__name__}."
            )
        if initial != int(initial) or initial < 0:
            raise ValueError(f"Expected initial to be 0, 1, 2, ... actions. Got {initial}.")
        if self.goals.num_objectives > 1 and not isinstance(acquisition, UCB | AtPresent):
            raise ValueError(
                "Expected an acquisition function of BoTorch for several objectives, or UCB, whose "
                f"place noisy expected hypervolume improvement takes. Got {acquisition!r}."
            )
        self.outcome_models = tuple(outcome_models)
        self.acquisition = acquisition
        self.pending = Hallucinate() if pending is None else pending
        self.initial = initial
        self._space_filling = SpaceFilling()

    @property
    def posterior_state(self) -> PosteriorState:
        """What holds the posterior of the first outcome."""
        return self.outcome_models[0].posterior_state

    @property
    def retention(self) -> Retention:
        """The retention policy of the first outcome, as far as it has learned."""
        return self.outcome_models[0].retention

    @property
    def observations(self) -> Observations:
        """The observations held of the first outcome."""
        return self.outcome_models[0].observations

    @property
    def model_size(self) -> int:
        """Number of observations held of the first outcome."""
        return len(self.observations)

    @property
    def repeats_open_trials(self) -> bool:
        """Whether pending trials do not count, and no functions are drawn."""
        return not self.pending.enabled and not isinstance(self.acquisition, ThompsonSampling)

    @property
    def model(self) -> Model | None:
        """The model of the first outcome behind the newest ask or recommendation; None before.

        It is the loop's own: change parameters on a ``deepcopy`` of it. Its outcomes are the
        negatives of those observed where the optimizer minimizes. That of an ask counts pending
        trials, that of a recommendation outcomes only. While actions fill the space, it has the
        default hyperparameters. Whatever its class, it has ``posterior`` and ``forgetting_rate``,
        and on a box ``likelihood`` and ``covar_module``. As in BoTorch, these are of standardized
        outcomes where it has an ``outcome_transform``, which its posterior undoes.
        """
        newest = self.outcome_models[0].newest
        return None if newest is None else newest.in_user_units()

    def recommend(
        self,
        context: Context | None = None,
        t: Time | None = None,
        *,
        choices: Table | None = None,
    ) -> Recommendation:
        """Return the feasible action with the best posterior mean in a context.

        Does not modify the optimizer. A fit of hyperparameters that is due is made for the
        recommendation alone, and made again at the next ask. Where no action satisfies the
        constraints with ``min_feasibility``, it is about the one that most probably does; its
        ``feasibility`` says so.

        Args:
            context: The context, where contexts were declared: ``c`` numbers, or values by name.
            t: The time; None is that of the newest open ask or outcome.
            choices: The actions to recommend one of, as of :meth:`ask`; None: all.

        Raises:
            InputDataError: if nothing is observed or open and no ``t`` is given, ``t`` is no time
                or before what a streaming model still knows, the context was not declared, or a row
                of ``choices`` is no action.
            BotorchTensorDimensionError: if the context has the wrong size, or is missing.
            ValueError: if there are several objectives, for which there is :meth:`front`.
        """
        with self._one_call("recommend"):
            self._check_is_single()
            context, t = self._check_context(context), self._time_of(t)
            space = self._space_of(choices)
            self._look_at(t)
            return self._best(t, context, space)

    def policy(self, contexts: Table | None = None, t: Time | None = None) -> Policy:
        """Return the actions with the best posterior mean in several contexts at one time.

        Does not modify the optimizer.

        Args:
            contexts: ``m x c``, or a table with the names; None is every one of a declared list.
            t: The time; None is that of the newest open ask or outcome.

        Raises:
            ValueError: if contexts declared by bounds are left out, the table is empty, or there
                are several objectives.
            InputDataError: as :meth:`recommend`.
            BotorchTensorDimensionError: if no contexts were declared, or their size is wrong.
        """
        with self._one_call("policy"):
            self._check_is_single()
            declared = self.contexts
            if declared is None:
                raise BotorchTensorDimensionError(
                    f"Expected an optimizer with contexts, as declared. Got none for {self!r}."
                )
            if contexts is not None:
                table = declared.read_table(contexts)
            elif isinstance(declared, FiniteSpace):
                table = declared.choices
            else:
                raise ValueError("Expected contexts, m x c, which bounds do not list. Got none.")
            t = self._time_of(t)
            self._look_at(t)
            return Policy([self._best(t, each, self.search_space) for each in table])

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
        with self._one_call("front"):
            context, t = self._check_context(context), self._time_of(t)
            space = self._space_of(choices)
            self._look_at(t)
            ask_context = self._ask_context(t, context, space, copy_of(self.generator))
            X = pareto_actions(*self._standardized, ask_context, num_points)
            return [self._outlook(x, t, context) for x in X.split(1)]

    def drift(self, outcome: str | None = None) -> DriftEstimate:
        """Return how fast the function drifts, by the observations held.

        A fit that is due is made, as by :meth:`recommend`. Does not modify the optimizer.

        Args:
            outcome: Name of the outcome; None is the first.

        Raises:
            ValueError: if there is no such outcome.
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        if outcome is not None and outcome not in self.goals.names:
            raise ValueError(f"Expected one of {', '.join(self.goals.names)}. Got {outcome!r}.")
        with self._one_call("drift"):
            place = 0 if outcome is None else self.goals.names.index(outcome)
            model = self.outcome_models[place]
            fitter = model.posterior_state.fitter.copy()
            observations = model.observations_at(self._present[0])
            fitter.fit(observations, model.num_told, copy_of(self.generator))
        return estimate_drift(fitter, None if self.time_scale is None else self.time_scale.unit)

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        # The matrices of a finite set have a row for each choice.
        first = self.outcome_models[0]
        rows = search_space.choices if isinstance(search_space, FiniteSpace) else first.observations
        with threads_for(len(rows)):
            for each in self.outcome_models:
                each.discard(t, self._newest_observed[0])
            # Before a fit draws from the generator, so that the start does not depend on fits.
            start = self._next_start(search_space) if self._is_starting() else None
            open_rows = [self._row(each) for each in self._open.values() if each.informative]
            for each, sign in zip(self.outcome_models, self._signs.tolist(), strict=True):
                each.condition(t, open_rows, self.pending, self.generator, sign)
            if start is not None:
                return start
            ask_context = self._ask_context(t, context, search_space, self.generator)
            acq_function = self._acquisition_function(ask_context)
            if isinstance(acq_function, DrawnValues):
                # Its values are known at the candidates alone.
                return acq_function.best()
            joint = q if q > 1 and self._chooses_jointly else 1
            return maximize(acq_function, search_space, ask_context, self.generator, joint)

    def _next_start(self, search_space: SearchSpace) -> Tensor | None:
        """Return the next space-filling action of a set; None where all choices were tried."""
        first, d = self.outcome_models[0], self.layout.num_actions
        tried = [first.observations.X[:, :d], *(trial.X for trial in self.open_trials)]
        tried += [row[:, :d] for row in first.lost_rows]
        return self._space_filling.next(search_space, torch.cat(tried), self.generator)

    def _is_starting(self) -> bool:
        """Return whether too little was tried yet to learn from."""
        return self.outcome_models[0].num_told + len(self._open) < self.initial

    def _ask_context(
        self, t: float, context: Tensor | None, search_space: SearchSpace, generator: Generator
    ) -> AskContext:
        return AskContext(
            round=self._num_trials + 1,
            t=t,
            context=context,
            layout=self.layout,
            observations=self.outcome_models[0].observations,
            search_space=search_space,
            generator=generator,
        )

    def _acquisition_function(self, ask_context: AskContext) -> AcquisitionFunction:
        newest = self.outcome_models[0].newest
        assert newest is not None
        observations = standardized(ask_context.observations, newest.transform)
        ask_context = replace(ask_context, observations=observations)
        if len(self.outcome_models) == 1 and not self.goals.limits:
            return self.acquisition(newest.model, ask_context)
        models, goals = self._standardized
        if goals.limits and len(observations) > 0:
            # Incumbents and baselines are actions that are feasible now, more probably than not;
            # without such, the one that most probably is.
            with torch.no_grad():
                rows = ask_context.rows_observed().unsqueeze(-2)
                feasibility = goals.log_feasibility(models, rows)
            enough = min(math.log(0.5), feasibility.max().item())
            ask_context = replace(ask_context, observations=observations[feasibility >= enough])
        if goals.num_objectives == 1:
            acq_function = self.acquisition(models[0], ask_context)
        else:
            acquisition = self.acquisition
            if not isinstance(acquisition, AtPresent):
                acquisition = AtPresent(
                    partial(qLogNoisyExpectedHypervolumeImprovement, prune_baseline=True)
                )
            objectives = models[: goals.num_objectives]
            acq_function = acquisition.of_objectives(objectives, goals, ask_context)
        if goals.limits:
            acq_function = constrained(acq_function, models, goals, ask_context)
        return acq_function

    @property
    def _chooses_jointly(self) -> bool:
        takes_batches = isinstance(self.acquisition, AtPresent) and self.acquisition.takes_batches
        return self.goals.num_objectives > 1 or takes_batches

    @property
    def _standardized(self) -> tuple[list[Model], Goals]:
        """The posteriors behind the newest ask or recommendation, and the goals in their units."""
        newest = [each.newest for each in self.outcome_models if each.newest is not None]
        goals = self.goals.standardized([each.transform for each in newest])
        return [each.model for each in newest], goals

    def _look_at(self, t: float) -> None:
        """Have the models be those of an ask at ``t`` without pending trials."""
        for each in self.outcome_models:
            each.look_at(t, self.generator)

    def _check_is_single(self) -> None:
        if self.goals.num_objectives > 1:
            raise ValueError(
                "Expected one objective: of several, front() returns the best compromises. Got "
                f"{', '.join(self.goals.names[: self.goals.num_objectives])}."
            )

    def _best(self, t: float, context: Tensor | None, search_space: SearchSpace) -> Recommendation:
        ask_context = self._ask_context(t, context, search_space, copy_of(self.generator))
        models, goals = self._standardized
        # The posterior mean, which has a closed form where the upper bound has one.
        mean = UCB(ConstantBeta(0.0), edge_correction=True)
        acq_function = mean(models[0], ask_context)
        if goals.limits:
            acq_function = constrained(acq_function, models, goals, ask_context)
        X = maximize(acq_function, search_space, ask_context, copy_of(self.generator))
        return self._outlook(X, t, context)

    def _outlook(self, X: Tensor, t: float, context: Tensor | None) -> Recommendation:
        """Return what the newest models expect of an action."""
        row = self.layout.rows(X, t, context)
        newest = [each.newest for each in self.outcome_models if each.newest is not None]
        moments = [each.moments(row) for each in newest]
        (mean, deviation), *others = (
            (sign * mean, math.sqrt(variance))
            for sign, (mean, variance) in zip(self._signs.tolist(), moments, strict=True)
        )
        return Recommendation(
            X,
            mean,
            deviation,
            t,
            context,
            self.minimize,
            self.labels,
            feasibility=self._feasibility(row) if self.goals.limits else None,
            others=dict(zip(self.goals.names[1:], others, strict=True)),
        )

    def _feasibility(self, row: Tensor) -> float:
        """Return the probability that all constraints hold at a row, ``1 x d``."""
        models, goals = self._standardized
        with torch.no_grad():
            return goals.log_feasibility(models, row.unsqueeze(-2)).exp().item()

    def _judge(self, trial: Trial) -> Trial:
        if self._is_starting():
            return trial
        row = self._row(trial)
        if self.goals.limits:
            trial = replace(trial, feasibility=self._feasibility(row))
        judged = [each.admit(trial, row) for each in self.outcome_models]
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
            reason = min(rejections, key=lambda each: each.skip).reason
            self.trial_log.add(trial, "skipped" if trial.skipped else "discarded", reason)
        return trial

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        for model in self.outcome_models if trial.informative else ():
            model.check_variances(observation)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        for place, model in enumerate(self.outcome_models):
            model.learn(trial, observation.outcome(place))

    def _forget(self, trial: Trial) -> None:
        for model in self.outcome_models:
            model.lose(trial, self._row(trial))

    def _refits(self) -> list[Event]:
        events = []
        for name, model in zip(self.goals.names, self.outcome_models, strict=True):
            if (fit := model.new_fit()) is not None:
                if len(self.outcome_models) > 1:
                    fit = {f"{name}: {key}": value for key, value in fit.items()}
                events.append(Event("refit", fit=fit))
        return events
