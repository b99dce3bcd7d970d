"""Bayesian optimization by ask/tell with a Gaussian process for each outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, AtPresent, Goals, ThompsonSampling
from tvbo.acquisition.allowed import Outlook, acquisition_of
from tvbo.acquisition.success import SuccessModel
from tvbo.fit.drift_estimate import DriftEstimate, estimate_drift
from tvbo.models.raw import with_time
from tvbo.optim.maximize import maximize
from tvbo.optim.space_filling import next_start
from tvbo.optimizers.base import Optimizer, OptimizerOptions
from tvbo.optimizers.event import Event
from tvbo.optimizers.importance import total_effects
from tvbo.optimizers.outcome_model import OutcomeModel
from tvbo.optimizers.pareto import best_action, best_tried, pareto_actions
from tvbo.optimizers.pending import Hallucinate, Pending
from tvbo.recommendation import Policy, Recommendation
from tvbo.recorded_trial import RecordedTrial
from tvbo.retention import Retention
from tvbo.spaces import AskContext, FiniteSpace
from tvbo.spaces.labels import OUTCOME, Context, Time
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.threads import threads_for
from tvbo.trial import Trial
from tvbo.values import Table

if TYPE_CHECKING:
    import pandas as pd

Failures = Literal["learn", "nan", "ignore"]
"""What trials that fail or expire are taken for."""

MAX_ENDED = 100
"""Number of the newest trials from which a probability of success is learned."""


class GPOptimizer(Optimizer):
    """Bayesian optimization with a Gaussian process for each outcome, by ask/tell.

    Each ask discards the observations that retention no longer keeps, updates the posterior of each
    outcome, and maximizes the acquisition at the present time. Outcomes that come late enter with
    the time at which they were sampled. A trial says so where retention judges that its outcome is
    not worth having.

    Once a trial has failed or expired, a probability of success is learned from the newest 100
    that ended (:class:`tvbo.acquisition.success.SuccessModel`), and what probably fails has less of
    any acquisition. It is forgotten by the round, as far as the function drifts. Outcomes far below
    all others are winsorized before they enter the model, and the first time a warning is logged;
    ``observations`` has them as they came.

    Under constraints, the acquisition is maximized over the actions that satisfy all of them with
    probability ``min_feasibility`` now (``Allowed``), and its
    incumbent or baseline are feasible actions at the present. With several objectives, noisy
    expected hypervolume improvement (Daulton et al., 2021) takes the place of UCB. The loop learns
    where it is feasible from actions that probably are: it does not look for feasible actions far
    from those that it knows, beyond those that fill the space at first.

    Args:
        search_space: The set of actions.
        outcome_models: The model of each outcome, the objectives first; they have one layout.
        acquisition: Builds the acquisition function: :class:`tvbo.acquisition.UCB`, or any function
            of a model and a :class:`tvbo.spaces.AskContext` to a BoTorch acquisition.
        pending: What stands in for the outcomes of pending trials; default
            :class:`tvbo.optimizers.Hallucinate`, which changes nothing while none is pending. The
            papers that know no delay have :class:`tvbo.optimizers.IgnorePending`.
        initial: Number of actions that fill the space at first instead of maximizing the
            acquisition, on a finite set until each was tried once, and whose outcomes are never
            refused; default 0, in recipes what the first fit waits for.
        goals: What is sought of the outcomes; default the maximum of one.
        failures: ``"learn"``, the default, or ``"ignore"``: whether trials that fail or expire tell
            where others would; or ``"nan"``: they do, and a trial whose outcome is NaN fails.
        **options: As of :class:`Optimizer`.

    Attributes:
        outcome_models: The model of each outcome.
        goals: The goals.

    Raises:
        TypeError: if ``pending`` is no policy for pending trials.
        ValueError: if ``initial`` is not a whole number of at least 0, ``failures`` is another
            word, the models are not as many as the outcomes of the goals, or the acquisition is not
            one of several objectives where there are several.
    """

    _takes_requests = True

    def __init__(
        self,
        search_space: SearchSpace,
        outcome_models: Sequence[OutcomeModel],
        acquisition: Acquisition,
        pending: Pending | None = None,
        initial: int = 0,
        goals: Goals | None = None,
        failures: Failures = "learn",
        **options: Unpack[OptimizerOptions],
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
            minimize=names[0] in self.goals.minimized,
            outcome_names=() if names == (OUTCOME,) else names,
            **options,
        )
        self._signs = self.goals.signs
        if pending is not None and not isinstance(pending, Pending):
            raise TypeError(
                f"Expected a pending policy. Got {pending!r} of {type(pending).__name__}."
            )
        if initial != int(initial) or initial < 0:
            raise ValueError(f"Expected initial to be 0, 1, 2, ... actions. Got {initial}.")
        if failures not in get_args(Failures):
            raise ValueError(f"Expected failures 'learn', 'nan' or 'ignore'. Got {failures!r}.")
        if self.goals.num_objectives > 1 and not isinstance(acquisition, UCB | AtPresent):
            raise ValueError(
                "Expected an acquisition function of BoTorch for several objectives, or UCB, whose "
                f"place noisy expected hypervolume improvement takes. Got {acquisition!r}."
            )
        self.outcome_models = tuple(outcome_models)
        self.acquisition = acquisition
        self.pending = Hallucinate() if pending is None else pending
        self.initial = initial
        self.failures = failures
        # The newest trials that ended, with 1 for those that succeeded and 0 for the others.
        self._ended = Observations.empty(self.layout.num_columns)
        # The probability of success behind the newest ask or recommendation.
        self._success: SuccessModel | None = None
        # Rows of the open trials as of the newest ask, by their numbers.
        self._open_rows: dict[int, Tensor] = {}

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
        self, context: Context | None = None, t: Time | None = None, *, choices: Table | None = None
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
            return self._best(self._look_at(t, self._check_context(context), choices))

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
            outlook = self._look_at(t)
            presents = (replace(outlook.ask_context, context=each) for each in table)
            return Policy([self._best(replace(outlook, ask_context=each)) for each in presents])

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
            outlook = self._look_at(t, self._check_context(context), choices)
            return outlook.recommendations(pareto_actions(outlook, num_points), self.labels)

    def predict(
        self, X: Table, t: Time | None = None, context: Context | None = None
    ) -> pd.DataFrame:
        """Return what outcomes to expect of actions at a time, in a context.

        By the outcomes observed, whatever is pending. Does not modify the optimizer.

        Args:
            X: ``n x d``, a table with a row for each action, or lists of values by name, of which
                all combinations are meant, such as ``{"x": [0.1, 0.2], "kind": ["a"]}``.
            t: The time; None is that of the newest open ask or outcome.
            context: The context, where contexts were declared.

        Returns:
            A row for each action, as :meth:`tvbo.optimizers.Recommendation.to_row` has it: time,
            action, context, mean and standard deviation, without the noise of an outcome, of the
            first outcome and of others by name, and ``feasibility`` and
            ``probability_of_success``, where there are constraints or a trial has failed.

        Raises:
            InputDataError, BotorchTensorDimensionError: as :meth:`recommend`.
            ValueError: if there are no actions.

        Example:
            >>> optimizer.predict(torch.linspace(0, 1, 11).unsqueeze(-1))["mean"]
        """
        import pandas as pd

        with self._one_call("predict"):
            outlook = self._look_at(t, self._check_context(context))
            expected = outlook.recommendations(self.search_space.read_table(X), self.labels)
            return pd.DataFrame([each.to_row() for each in expected])

    def importance(self, outcome: str | None = None) -> dict[str, float]:
        """Return how much each parameter and context matters to the mean of an outcome now.

        It is the total Sobol index of the posterior mean at the time of the newest open ask or
        outcome: the share of its variance over the whole space in which a parameter takes part,
        alone and together with others. Other than a length-scale, it counts how much changes along
        a parameter and not only how fast, and it is the same measure for numbers and categories.
        Does not modify the optimizer.

        Args:
            outcome: Name of the outcome; None is the first.

        Returns:
            From 0, of what does not matter, to 1, of what alone decides, the largest first. Shares
            add up to 1, or to more where parameters act together.

        Raises:
            ValueError: if there is no such outcome.
            InputDataError: if nothing is observed or open.
        """
        place = self.goals.place_of(outcome)
        with self._one_call("importance"):
            outlook = self._look_at(None)
            spaces = [self.search_space]
            if self.layout.num_contexts and self.contexts is not None:
                spaces.append(self.contexts)
            model, now = outlook.outcomes[place], outlook.ask_context.t
            effects = total_effects(
                lambda X: model.moments(with_time(X, now))[0], spaces, self.seed
            )
        return dict(sorted(effects.items(), key=lambda each: -each[1]))

    def drift(self, outcome: str | None = None) -> DriftEstimate:
        """Return how fast the function drifts, by the observations held.

        A fit that is due is made, as by :meth:`recommend`. Does not modify the optimizer.

        Args:
            outcome: Name of the outcome; None is the first.

        Raises:
            ValueError: if there is no such outcome.
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        place = self.goals.place_of(outcome)
        with self._one_call("drift"):
            fitter = self.outcome_models[place].fitter_at(self._present[0], self._next_generator())
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
            self._success = self._success_at(t)
            ask_context = self._ask_context(t, context, search_space, self.generator)
            # Before a fit draws from the generator, so that the start does not depend on fits.
            start = self._next_start(ask_context) if self._is_starting() else None
            known = self._open_rows
            self._open_rows = {
                i: known[i] if i in known else self._row(each)
                for i, each in self._open.items()
                if each.informative
            }
            open_rows = [*self._open_rows.values()]
            for each, sign in zip(self.outcome_models, self._signs.tolist(), strict=True):
                each.condition(t, open_rows, self.pending, self.generator, sign)
            if start is not None:
                return start
            acq_function = acquisition_of(self.acquisition, self._outlook(ask_context))
            joint = q if q > 1 and self._chooses_jointly else 1
            return maximize(acq_function, search_space, ask_context, self.generator, joint)

    def _next_start(self, ask_context: AskContext) -> Tensor | None:
        """Return the next space-filling action of a set; None where all choices were tried."""
        held, d = self.outcome_models[0].observations, self.layout.num_actions
        failed = self._ended.X[self._ended.Y.squeeze(-1) == 0]
        tried = torch.cat([held.X[:, :d], failed[:, :d], *(each.X for each in self.open_trials)])
        success = None if self._success is None else self._success.log_probability
        return next_start(ask_context, tried, self.seed, success)

    def _is_starting(self) -> bool:
        """Return whether too little was tried yet to learn from."""
        return self.outcome_models[0].num_told + len(self._open) < self.initial

    def _ask_context(
        self, t: float, context: Tensor | None, search_space: SearchSpace, generator: Generator
    ) -> AskContext:
        number, held = self.num_trials + 1, self.outcome_models[0].observations
        return AskContext(number, t, context, self.layout, held, search_space, generator)

    def _success_at(self, t: float) -> SuccessModel | None:
        """Return the probability of success at a time; None if no trial has failed lately."""
        if self.failures == "ignore" or bool(self._ended.Y.all()):
            return None
        return self.outcome_models[0].success_at(self._ended, t)

    @property
    def _chooses_jointly(self) -> bool:
        takes_batches = isinstance(self.acquisition, AtPresent) and self.acquisition.takes_batches
        return self.goals.num_objectives > 1 or takes_batches

    def _outlook(self, ask_context: AskContext) -> Outlook:
        """Return what is expected by the posteriors behind the newest ask or recommendation."""
        newest = [each.newest for each in self.outcome_models if each.newest is not None]
        return Outlook(newest, self.goals, ask_context, self._success)

    def _look_at(
        self, t: Time | None, context: Tensor | None = None, choices: Table | None = None
    ) -> Outlook:
        """Have the models be those of an ask without pending trials; return what they expect."""
        now, space = self._time_of(t), self._space_of(choices)
        self._success = self._success_at(now)
        for each in self.outcome_models:
            each.look_at(now, self._next_generator())
        return self._outlook(self._ask_context(now, context, space, self._next_generator()))

    def _best(self, outlook: Outlook) -> Recommendation:
        (found,) = outlook.recommendations(best_action(outlook), self.labels)
        return found

    def _outlook_of(self, trial: Trial) -> Outlook:
        space, generator = self.search_space, self._next_generator()
        return self._outlook(self._ask_context(trial.t, trial.context, space, generator))

    def _ask_event(self, trial: Trial) -> Event:
        reason = ""
        if not self._is_starting():
            trial, reason = self._judged(trial)
        for name, model in zip(self.goals.names, self.outcome_models, strict=True):
            if (fit := model.new_fit) is not None:
                model.new_fit = None
                if len(self.outcome_models) > 1:
                    fit = {f"{name}: {key}": value for key, value in fit.items()}
                self._add(Event("refit", fit=fit))
        dropped = [each.dropped for each in self.outcome_models]
        return Event("ask", trial, reason=reason, dropped=dropped)

    def _judged(self, trial: Trial) -> tuple[Trial, str]:
        """Return a trial with what is predicted of it, and why its outcome is rejected."""
        row, reason = self._row(trial), ""
        if self.goals.limits:
            feasibility = self._outlook_of(trial).probabilities(row)["feasibility"].item()
            trial = replace(trial, feasibility=feasibility)
        judged = [each.admit(trial, row) for each in self.outcome_models]
        gains = [gain for gain, _ in judged if gain is not None]
        if gains:
            trial = replace(trial, information_gain=sum(gains))
        rejections = [rejection for _, rejection in judged if rejection is not None]
        # Rejected only where each outcome is; skipped only where none has to be measured.
        if len(rejections) == len(judged):
            found = min(rejections, key=lambda each: each.skip)
            trial, reason = replace(trial, informative=False, skipped=found.skip), found.reason
            self.trial_log.add(trial, "skipped" if found.skip else "discarded", reason)
        return trial, reason

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        for model in self.outcome_models if trial.informative else ():
            model.check_variances(observation)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        for place, model in enumerate(self.outcome_models):
            model.learn(trial, observation.outcome(place))
        self._end(trial, 1.0)

    def _forget(self, trial: Trial) -> None:
        for model in self.outcome_models:
            model.forget(trial)
        self._end(trial, 0.0)

    def _end(self, trial: Trial, success: float) -> None:
        """Note that a trial has ended, 1 with success."""
        ended = Observations(self._row(trial), torch.tensor([[success]], dtype=torch.float64))
        self._ended = self._ended.append(ended)[-MAX_ENDED:]

    def _predicted(self, trial: Trial) -> Mapping[str, Any]:
        names = self.labels.feature_names(self.layout.num_actions, self.layout.num_contexts)
        found = self.outcome_models[0].predicted(self._row(trial), names)
        mean = self._signs[0].item() * found["mean"]
        return {**found, "mean": mean, "best": best_tried(self._outlook_of(trial))}

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned: of each outcome hyperparameters, and what retention knows."""
        return {"outcome_models": [each.state_dict() for each in self.outcome_models]}

    def _load(self, trials: Sequence[RecordedTrial], state: Mapping[str, Any]) -> None:
        ended = sorted((each for each in trials if each.ended), key=attrgetter("ended"))
        newest = max((each.observed_at for each in ended if each.Y), default=-math.inf)
        c = self.layout.num_contexts
        values = [(*each.X, *(each.context or ())[:c], each.observed_at) for each in ended]
        rows = torch.tensor(values, dtype=torch.float64).view(-1, self.layout.num_columns)
        success = torch.tensor([float(bool(each.Y)) for each in ended], dtype=torch.float64)
        self._ended = Observations(rows, success.unsqueeze(-1))[-MAX_ENDED:]
        entered = [bool(each.Y) and each.informative for each in ended]
        told = list(compress(ended, entered))
        noise = [each.Yvar for each in told if each.Yvar]
        Y = torch.tensor([each.Y for each in told], dtype=torch.float64)
        Y = self._signs * Y.view(-1, len(self.outcome_models))
        Yvar = torch.tensor(noise, dtype=torch.float64) if noise else None
        known = Observations(rows[torch.tensor(entered, dtype=torch.bool)], Y, Yvar)
        numbers, asks = [each.id for each in told], [each for each in trials if each.round]
        for place, model in enumerate(self.outcome_models):
            dropped = [(each.t, each.dropped[place] if each.dropped else ()) for each in asks]
            learned = state["outcome_models"][place]
            model.load(learned, known.outcome(place), numbers, dropped, newest)
