"""Bayesian optimization by ask/tell with a Gaussian process."""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from dataclasses import replace
from functools import reduce

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition import Acquisition, AtPresent, DrawnValues, ThompsonSampling
from tvbo.acquisition.analytic import posterior_mean
from tvbo.fit.drift_estimate import DriftEstimate, estimate_drift
from tvbo.fit.refit import RefitNever
from tvbo.fit.winsorize import lower_cutoff
from tvbo.models import IncrementalGP
from tvbo.models.stream_preview import StreamPreview
from tvbo.optim import SpaceFilling, maximize
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.pending import FailuresAtWorst, Hallucinate, Pending
from tvbo.optimizers.posterior_state import PosteriorState, mean_and_variance
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.rejection_log import RejectionLog
from tvbo.optimizers.trial_log import LostTrial
from tvbo.randomness import copy_of
from tvbo.retention import KeepAll, Prediction, Rejection, Retention
from tvbo.retention.base import mask_of
from tvbo.spaces import (
    AskContext,
    Context,
    ContextSpace,
    FiniteSpace,
    InputLayout,
    SearchSpace,
    Table,
    Time,
)
from tvbo.spaces.observations import Observations, check_variances, provided
from tvbo.storage.recorded import Event
from tvbo.threads import threads_for
from tvbo.trial import Trial

logger = logging.getLogger("tvbo.optimizers")

OTHERS = 20
"""Number of outcomes after which a trial that failed or expired no longer counts."""

MOST_LOST = 100
"""Largest number of such trials that count, where no outcomes come: an ask costs its cube."""

NEAR = 0.05
"""Share of the range of each column within which actions and contexts are about the same."""


class GPOptimizer(Optimizer):
    """Bayesian optimization with a Gaussian process, by ask/tell.

    Each ask discards the observations that retention no longer keeps, updates the posterior, and
    maximizes the acquisition at the present time. Outcomes told late enter with the time at which
    they were sampled. A trial says so where retention judges that its outcome is not worth having.

    A trial that failed or expired counts as pending still, until 20 outcomes of others were told,
    one of the same action was, or retention would drop it. The least outcome held is then in the
    place of its own, if that is below what ``pending`` says; but not of the first that fails where
    others had outcomes, which may be chance. Outcomes far below all others are winsorized before
    they enter the model, and the first time a warning is logged; ``observations`` has them as told.

    Args:
        search_space: The set of actions.
        posterior_state: Holds the posterior of the observations.
        acquisition: Builds the acquisition function: :class:`tvbo.acquisition.UCB`, or any function
            of a model and a :class:`tvbo.spaces.AskContext` to a BoTorch acquisition.
        retention: Which observations stay, and which outcomes enter; all by default. The optimizer
            works on a copy, ``optimizer.retention``, since a policy may learn from what it is told.
        layout: Layout of the model's rows; by default actions, declared contexts and time.
        generator: Source of every random choice; default a fresh one with seed 0.
        contexts: The contexts to expect; None where there are none.
        pending: What stands in for the outcomes of pending trials; default
            :class:`tvbo.optimizers.Hallucinate`, which changes nothing while none is pending. The
            papers that know no delay have :class:`tvbo.optimizers.IgnorePending`.
        initial: Number of actions that fill the space at first instead of maximizing the
            acquisition, on a finite set until each was tried once, and whose outcomes are never
            refused; default 0, in recipes what the first fit waits for.

    Attributes:
        observations: The observations held.
        rejection_log: The record of trials whose outcome was not admitted.

    Raises:
        TypeError: if ``retention`` or ``pending`` is not a policy of its kind.
        ValueError: if ``initial`` is not a whole number of at least 0.
    """

    def __init__(
        self,
        search_space: SearchSpace,
        posterior_state: PosteriorState,
        acquisition: Acquisition,
        retention: Retention | None = None,
        layout: InputLayout | None = None,
        generator: Generator | None = None,
        contexts: ContextSpace | None = None,
        pending: Pending | None = None,
        initial: int = 0,
    ):
        super().__init__(search_space, layout, generator, contexts)
        self.posterior_state = posterior_state
        self.acquisition = acquisition
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(
                f"Expected a retention policy. Got {retention!r} of {type(retention).__name__}."
            )
        if pending is not None and not isinstance(pending, Pending):
            raise TypeError(
                f"Expected a pending policy. Got {pending!r} of {type(pending).__name__}."
            )
        if initial != int(initial) or initial < 0:
            raise ValueError(f"Expected initial to be 0, 1, 2, ... actions. Got {initial}.")
        self.pending = Hallucinate() if pending is None else pending
        self.initial = initial
        self.retention = KeepAll() if retention is None else deepcopy(retention)
        self.rejection_log = RejectionLog()
        self.observations = Observations.empty(self.layout.num_columns)
        self._num_told = 0
        self._space_filling = SpaceFilling()
        self._fit_seen: dict[str, list[float]] | None = None
        self._newest_model: Model | None = None
        self._predictions: dict[int, Prediction] = {}
        # Rows of the pending trials, so that no round need lay them out again.
        self._rows: dict[int, Tensor] = {}
        # Of trials that failed or expired: row, number of outcomes told before, whether by chance.
        self._lost: dict[int, tuple[Tensor, int, bool]] = {}
        # Below it, outcomes are winsorized in the posterior.
        self._cutoff = -math.inf
        self._has_winsorized = False

    _takes_requests = True
    # Observations that were discarded for asks from which nothing was told yet, and their times.
    _set_aside: tuple[tuple[float, Observations], ...] = ()
    _is_objective = True
    """Whether larger outcomes are better; False for an outcome that only has limits."""

    @property
    def repeats_open_trials(self) -> bool:
        """Whether pending trials do not count, and no functions are drawn."""
        return not self.pending.enabled and not isinstance(self.acquisition, ThompsonSampling)

    @property
    def _chooses_jointly(self) -> bool:
        return isinstance(self.acquisition, AtPresent) and self.acquisition.takes_batches

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return len(self.observations)

    @property
    def model(self) -> Model | None:
        """The model behind the newest ask or recommendation; None before the first.

        It is the loop's own: change parameters on a ``deepcopy`` of it.
        Its outcomes are the negatives of those told where the optimizer minimizes. That of an ask
        counts pending trials, that of a recommendation outcomes only. While actions fill the space,
        it has the default hyperparameters. Whatever its class, it has ``posterior``
        and ``forgetting_rate``, and on a box ``likelihood`` and ``covar_module``. With pending
        trials these are in raw units; ``posterior_state.last_model`` has them as fitted.
        """
        model = self._newest_model
        # One remembers what it is asked about, the other puts off what is costly.
        return model.snapshot() if isinstance(model, IncrementalGP | StreamPreview) else model

    def recommend(
        self,
        context: Context | None = None,
        t: Time | None = None,
        *,
        choices: Table | None = None,
    ) -> Recommendation:
        """Return the action with the best posterior mean in a context.

        Does not modify the optimizer. A fit of hyperparameters that is due is made for the
        recommendation alone, and made again at the next ask.

        Args:
            context: The context, where contexts were declared: ``c`` numbers, or values by name.
            t: The time; None is that of the newest open ask or outcome.
            choices: The actions to recommend one of, as of :meth:`ask`; None: all.

        Raises:
            InputDataError: if nothing is told or open and no ``t`` is given, ``t`` is no time
                or before what a streaming model still knows, the context was not declared, or a row
                of ``choices`` is no action.
            BotorchTensorDimensionError: if the context has the wrong size, or is missing.
        """
        context = self._check_context(context)
        t = self._time_of(t)
        space = self._space_among(choices)
        return self._best(self._look_at(t), t, context, space)

    def drift(self) -> DriftEstimate:
        """Return how fast the function drifts, by the observations held.

        A fit that is due is made, as by :meth:`recommend`. Does not modify the optimizer. Of
        several outcomes it is the drift of the first; the others have theirs, ``others[name]``.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        fitter = self.posterior_state.fitter.copy()
        observations = self.observations_at(self._present[0])
        fitter.fit(observations, self._num_told, copy_of(self.generator))
        return estimate_drift(fitter, None if self.time_scale is None else self.time_scale.unit)

    def policy(self, contexts: Table | None = None, t: Time | None = None) -> Policy:
        """Return the actions with the best posterior mean in several contexts at one time.

        Does not modify the optimizer.

        Args:
            contexts: ``m x c``, or a table with the names; None is every one of a declared list.
            t: The time; None is that of the newest open ask or outcome.

        Raises:
            ValueError: if contexts declared by bounds are left out, or the table is empty.
            InputDataError: as :meth:`recommend`.
            BotorchTensorDimensionError: if no contexts were declared, or their size is wrong.
        """
        table = self._check_table(contexts)
        t = self._time_of(t)
        model = self._look_at(t)
        space = self.search_space
        return Policy.collect([self._best(model, t, context, space) for context in table])

    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        return self._choose_among(self.search_space, 1, t, context)

    def _choose_among(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        # The matrices of a finite set have a row for each choice.
        rows = search_space.choices if isinstance(search_space, FiniteSpace) else self.observations
        with threads_for(len(rows)):
            return self._maximize(search_space, q, t, context)

    def _maximize(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        self._discard(t)
        # Before a fit draws from the generator, so that the start does not depend on fits.
        start = self._start(search_space) if self._is_starting() else None
        self._newest_model = model = self._condition(t)
        if start is not None:
            return start
        ask_context = self._ask_context(t, context, search_space)
        acq_function = self._acquisition_function(model, ask_context)
        if isinstance(acq_function, DrawnValues):
            # Its values are known at the candidates alone.
            return acq_function.best()
        joint = q if self._chooses_jointly else 1
        return maximize(acq_function, search_space, ask_context, self.generator, joint)

    def _discard(self, t: float) -> None:
        """Forget the observations that retention no longer keeps.

        They are set aside until an outcome has come from then on, since the ask may fail.
        """
        held = self._held(t)
        if len(held) > len(self.observations):
            self.posterior_state.restart()
            self.observations = held
            self._set_aside = tuple(each for each in self._set_aside if each[0] <= t)
        keep = mask_of(self.retention, self.observations, self.posterior_state.last_model, t)
        newest = self._newest_told[0]
        self._set_aside = tuple(each for each in self._set_aside if each[0] > newest)
        if not keep.all():
            self.posterior_state.drop(self.observations, keep, t)
            if t > newest:
                self._set_aside += ((t, self.observations[~keep]),)
            self.observations = self.observations[keep]

    def _held(self, t: float) -> Observations:
        """Return the observations held, with those that were set aside for an ask after ``t``."""
        again = [each for later, each in self._set_aside if later > t]
        return reduce(Observations.append, [*again, self.observations])

    def observations_at(self, t: float) -> Observations:
        """Return the observations that count at a time, with outcomes as they enter the model."""
        told, _ = self._winsorized(self._held(t))
        return told[mask_of(self.retention, told, self.posterior_state.last_model, t)]

    def _condition(self, t: float) -> Model:
        """Update the posterior, and return it given the observations and the pending trials."""
        opened = [self._rows[each.id] for each in self.open_trials if each.informative]
        rows = self._counted([*opened, *(row for row, *_ in self._lost.values())], t)
        rows = rows[rows[:, -1].argsort(stable=True)]
        failed = {tuple(row[0].tolist()) for row, _, chance in self._lost.values() if not chance}
        told, cutoff = self._winsorized(self.observations)
        if cutoff != self._cutoff:
            self.posterior_state.restart()
            self._cutoff = cutoff
            self._say_winsorized()
        pending = self.pending
        if failed and len(told) > 0 and self._is_objective:
            pending = FailuresAtWorst(pending, frozenset(failed), told.Y.min().item())
        self.posterior_state.update(told, self._num_told, self.generator)
        return self.posterior_state.condition(told, rows, pending)

    def _say_winsorized(self) -> None:
        """Log, the first time, that outcomes are winsorized."""
        if self._has_winsorized or self._cutoff == -math.inf:
            return
        self._has_winsorized = True
        low = self.observations.Y[self._cutoff > self.observations.Y]
        logger.warning(
            "Outcomes far %s the rest, the newest %g, enter the model as %.4g, here and from now "
            "on. A trial that crashed may also be ended by fail(trial, reason).",
            "above" if self._sign < 0 else "below",
            self._sign * low[-1].item(),
            self._sign * self._cutoff,
        )

    def _winsorized(self, told: Observations) -> tuple[Observations, float]:
        """Return observations as they enter the model, and the least outcome that may."""
        if not self._is_objective:
            return told, -math.inf
        scale = self._unit if isinstance(self.posterior_state.fitter.refit, RefitNever) else 0.0
        cutoff = lower_cutoff(told, self._bounds(), self.layout.num_actions, scale)
        if cutoff > -math.inf:
            told = replace(told, Y=told.Y.clamp_min(cutoff))
        return told, cutoff

    def _acquisition_function(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        return self.acquisition(model, ask_context)

    def _start(self, search_space: SearchSpace) -> Tensor | None:
        """Return the next space-filling action of a set; None where all choices were tried."""
        tried = [self.observations.X[:, : self.layout.num_actions]]
        tried += [trial.X for trial in self.open_trials]
        tried += [row[:, : self.layout.num_actions] for row, *_ in self._lost.values()]
        return self._space_filling.next(search_space, torch.cat(tried), self.generator)

    def _is_starting(self) -> bool:
        """Return whether too little was tried yet to learn from."""
        return self._num_told + len(self._open) < self.initial

    def _counted(self, rows: list[Tensor], t: float) -> Tensor:
        """Return those of the rows without outcome that count for the next action, ``q x d``."""
        X = torch.cat([self.observations.X[:0], *rows])
        # What lies in the future need not be counted now.
        X = X[X[:, -1] <= t] if self.pending.enabled else X[:0]
        # Nor what would be dropped as soon as it is told.
        outcomes = Observations(X, torch.zeros(len(X), 1, dtype=torch.float64))
        return X[mask_of(self.retention, outcomes, self.posterior_state.last_model, t)]

    def _row(self, trial: Trial) -> Tensor:
        return self.layout.rows(trial.X, trial.t, self._seen(trial.context))

    def _judge(self, trial: Trial) -> Trial:
        trial, rejection = self._admit(trial)
        if rejection is not None:
            self.rejection_log.add(trial, rejection)
        return trial

    def _admit(self, trial: Trial) -> tuple[Trial, Rejection | None]:
        """Return the trial with the prediction of its outcome, and why it is rejected, if it is."""
        admission = self.retention.admission
        if admission is None or self._is_starting():
            return trial, None
        noise_variance = self.posterior_state.outcome_noise(self.observations)
        if noise_variance is None:
            return trial, None
        row = self._row(trial)
        mean, variance = mean_and_variance(provided(self._newest_model), row)
        prediction = Prediction(trial.t, mean, variance, noise_variance, trial.id)
        rejection = admission.admit(prediction, len(self.observations))
        trial = replace(
            trial,
            informative=rejection is None,
            information_gain=prediction.information_gain,
            skipped=rejection is not None and rejection.skip,
        )
        if not trial.skipped:
            # Its outcome is compared with the other outcomes, not with what stands in for some.
            mean, variance = self.posterior_state.predict(row)
            self._predictions[trial.id] = replace(prediction, mean=mean, variance=variance)
        return trial, rejection

    @property
    def _unit(self) -> float:
        return self.posterior_state.fitter.unit

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        super()._check_outcome(trial, observation)
        for held in (self.observations, *(each for _, each in self._set_aside)):
            if trial.informative and len(held):
                check_variances(held, observation)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        # What may refuse the outcome comes first, what takes it in last.
        observations = self.observations.append(observation) if trial.informative else None
        prediction, admission = self._predictions.get(trial.id), self.retention.admission
        if prediction is not None and admission is not None:
            if observation.Yvar is not None:
                prediction = replace(prediction, noise_variance=observation.Yvar.item())
            admission.observe_outcome(prediction, observation.Y.item())
        if observations is not None:
            self.observations = observations
            # What is refused makes no fit due: it would learn nothing from it.
            self._num_told += 1
            self._release(observation.X[:, :-1])
        self._let_go(trial)

    def _open_trial(self, trial: Trial) -> Trial:
        self._rows[trial.id] = self._row(trial)
        return super()._open_trial(trial)

    def _forget(self, lost: LostTrial) -> None:
        trial = lost.trial
        if trial.informative:
            row = self._rows[trial.id]
            before = torch.cat([row[:0], *(each for each, *_ in self._lost.values())])
            # What has worked may fail by chance, once.
            by_chance = self._is_near(row, self.observations.X) and not self._is_near(row, before)
            self._lost[trial.id] = row, self._num_told, by_chance
            if len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]
        self._let_go(trial)

    def _is_near(self, row: Tensor, rows: Tensor) -> bool:
        """Return whether one of the rows has about the same action and context."""
        lower, upper = self._bounds()
        return bool(((rows - row)[:, :-1].abs() <= NEAR * (upper - lower)).all(dim=-1).any())

    def _bounds(self) -> Tensor:
        """Return the range of all columns but time, ``2 x (d + c)``."""
        if self.contexts is None or not self.layout.num_contexts:
            return self.search_space.bounds
        return torch.cat([self.search_space.bounds, self.contexts.bounds], dim=-1)

    def _release(self, told: Tensor) -> None:
        """Let go of failures after many outcomes, or one of the same action and context."""
        self._lost = {
            number: (row, before, by_chance)
            for number, (row, before, by_chance) in self._lost.items()
            if self._num_told - before < OTHERS and not torch.equal(row[:, :-1], told)
        }

    def _let_go(self, trial: Trial) -> None:
        self._predictions.pop(trial.id, None)
        self._rows.pop(trial.id, None)

    def _refits(self) -> list[Event]:
        fitter = self.posterior_state.fitter
        if isinstance(fitter.refit, RefitNever) or fitter.newest_fit is self._fit_seen:
            return []
        self._fit_seen = fitter.newest_fit
        return [Event("refit", fit=fitter.newest_fit)]

    def _ask_context(
        self, t: float, context: Tensor | None, search_space: SearchSpace | None = None
    ) -> AskContext:
        return AskContext(
            round=self._num_trials + 1,
            t=t,
            context=self._seen(context),
            layout=self.layout,
            observations=self.observations,
            search_space=search_space or self.search_space,
            generator=self.generator,
        )

    def _look_at(self, t: float) -> Model:
        """Return the posterior that an ask at ``t`` would have without pending trials."""
        state, generator = self.posterior_state, copy_of(self.generator)
        told, cutoff = self._winsorized(self._held(t))
        keep = mask_of(self.retention, told, state.last_model, t)
        if cutoff != self._cutoff or len(told) > len(self.observations):
            state = deepcopy(state)
            state.restart()
        model = state.preview(told, keep, self._num_told, generator)
        self._newest_model = model
        return model

    def _best(
        self, model: Model, t: float, context: Tensor | None, search_space: SearchSpace
    ) -> Recommendation:
        ask_context = self._ask_context(t, context, search_space)
        X = maximize(
            posterior_mean(model, ask_context),
            search_space,
            ask_context,
            copy_of(self.generator),
        )
        mean, variance = mean_and_variance(model, ask_context.rows(X))
        return self._recommendation(X, mean, math.sqrt(variance), t, context)
