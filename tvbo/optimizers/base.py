"""The book-keeping of every ask/tell loop: rounds, open trials, and what is refused."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from datetime import timedelta

import torch
from torch import Generator, Tensor

from tvbo.optimizers.asking import AskMixin
from tvbo.optimizers.refusals import as_text, check_outcome, find_open
from tvbo.optimizers.tables import TablesMixin
from tvbo.optimizers.trial_log import Ending, LostTrial, TrialLog
from tvbo.randomness import default_generator
from tvbo.spaces import (
    Context,
    ContextSpace,
    InputLayout,
    Named,
    Outcome,
    SearchSpace,
    Time,
)
from tvbo.spaces.observations import Observations
from tvbo.storage.recorded import Event, Kind
from tvbo.terminal import html_table
from tvbo.trial import Trial

logger = logging.getLogger("tvbo.optimizers")

IN_A_ROW = 5
"""Number of failures in a row after which it is said that they are alike, if they are."""


class Optimizer(AskMixin, TablesMixin, ABC):
    """Ask for an action, tell its outcome; outcomes in any order, any time later.

    A trial is open from the ask until it is told, fails or expires. An optimizer takes one call at
    a time: from one thread, as :func:`tvbo.evaluation.run_async` does, or from several in turn. A
    call from another thread while one is under way is refused with a ``RuntimeError``.

    Args:
        search_space: The set of actions.
        layout: How the rows that the model sees are laid out; by default actions, the contexts
            that were declared, and time.
        generator: Source of every random choice; default a fresh one with seed 0.
        contexts: The contexts to expect; None where there are none. They may be declared and yet
            have no place in ``layout``: then each trial has its context, and the model ignores it.

    Attributes:
        trial_log: How many trials ended and how, and why the newest of them were lost.

    Raises:
        BotorchTensorDimensionError: if ``layout`` does not fit the search space or the contexts.
    """

    # Actions of the newest trials, as long as all fail.
    _failing: tuple[Tensor, ...] = ()

    def __init__(
        self,
        search_space: SearchSpace,
        layout: InputLayout | None = None,
        generator: Generator | None = None,
        contexts: ContextSpace | None = None,
    ):
        self.search_space = search_space
        self.contexts = contexts
        num_contexts = 0 if contexts is None else contexts.dim
        self.layout = layout or InputLayout(search_space.dim, num_contexts)
        self.layout.check_fits(search_space.dim, num_contexts)
        self.generator = default_generator(generator)
        self._labels = self._read_labels()
        self.trial_log = TrialLog()
        self._open: dict[int, Trial] = {}
        self._num_trials = 0
        self._num_asked = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self._counts().items())
        return f"{type(self).__name__} over {self._space_in_words()}: {counts}"

    def _repr_html_(self) -> str:
        return html_table({type(self).__name__: self._space_in_words(), **self._counts()})

    def _space_in_words(self) -> str:
        parameters = self.search_space.parameters
        return f"{self.search_space.dim} numbers" if parameters is None else str(parameters)

    def _counts(self) -> dict[str, int]:
        log = self.trial_log
        counts = {"told": log.num_told, "open": len(self._open), "failed": log.num_failed}
        return counts | {"expired": log.num_expired, "in the model": self.model_size}

    @property
    def open_trials(self) -> tuple[Trial, ...]:
        """Trials that were not told yet, and did not fail or expire; oldest first."""
        return tuple(self._open.values())

    @property
    def num_trials(self) -> int:
        """Number of trials so far, skipped and attached ones included."""
        return self._num_trials

    @property
    def model_size(self) -> int:
        """Number of observations that the next action rests on."""
        return 0

    def attach(self, X: Tensor | Named, t: Time, context: Context | None = None) -> Trial:
        """Open a trial with an action of the caller's choice, such as a row of a log.

        Args:
            X: The action, ``d`` or ``1 x d``, or a dict or Series by name.
            t: Its time; earlier than the present is allowed.
            context: Its context, where contexts were declared.

        Raises:
            InputDataError: if the action is not in the search space, the context none of those
                declared, or a value is not finite.
            BotorchTensorDimensionError: if a shape does not fit, or a declared context is missing:
                an outcome seen in no known context cannot be compared with others.
        """
        X, t = self._read_action(X), self._number(t)
        context = self._check_context(context)
        with self._invalidated_on_error():
            trial = self._new_trial(X, t, context)
            with self._recorded(Event("attach", trial)):
                self._open_trial(trial)
        return trial

    def tell(self, trial: Trial | int, Y: Outcome, Yvar: Outcome | None = None) -> None:
        """Record the outcome of a trial.

        Args:
            trial: The trial or its id.
            Y: Its outcome, one number; larger is better, unless the optimizer minimizes. Of
                several outcomes all, by name or in their order.
            Yvar: Variance of the noise in ``Y``, where known.

        Raises:
            TrialError: if the trial is unknown, was skipped, was told already, failed or expired.
            InputDataError: if ``Y`` or ``Yvar`` is not finite, or so large that no later ask could
                compute with it, or ``Yvar`` is negative. The range is 1e50 prior standard
                deviations to either side of zero; it is the user's unit where the kernel is
                learned. Nothing changes, and the trial stays open.
            BotorchTensorDimensionError: if ``Y`` or ``Yvar`` is not one number for each outcome.
        """
        trial = self._find(trial)
        observation = self._observation(trial, Y, Yvar)
        self._check_outcome(trial, observation)
        told = Event("tell", trial, *self._as_told(observation))
        with self._recorded(told):
            self._learn(trial, observation)
            self._close(trial)
            self._newest_told = max(self._newest_told, (trial.t, trial.id))
            self.trial_log.num_told += 1
            self._failing = ()

    def fail(self, trial: Trial | int, reason: str) -> None:
        """Record that a trial has no outcome: a crash, an invalid value, a patient lost.

        It counts as pending still, with an outcome as bad as any, until others have come or it has
        faded (:class:`GPOptimizer`); SW-UCB and D-UCB learn the least reward. Its time no longer
        counts as the present. Hyperparameters are learned without it. Five failures in a row within
        a tenth of the space are logged as a warning.

        Args:
            trial: The trial or its id.
            reason: Why, in words; it is kept in ``optimizer.trial_log``.

        Raises:
            TrialError: as :meth:`tell`.
            TypeError: if the reason is not a string.
        """
        self._lose(self._find(trial), "failed", reason)

    def expire(self, trial: Trial | int, reason: str = "past its deadline") -> None:
        """Stop waiting for the outcome of a trial; a late one can be added with :meth:`attach`.

        The next actions are chosen as after :meth:`fail`.

        Args:
            trial: The trial or its id.
            reason: Why, in words; it is kept in ``optimizer.trial_log``.

        Raises:
            TrialError: as :meth:`tell`.
            TypeError: if the reason is not a string.
        """
        self._lose(self._find(trial), "expired", reason)

    def expire_overdue(self, t: Time, max_delay: float | timedelta) -> tuple[Trial, ...]:
        """Expire the trials that were sampled more than ``max_delay`` before ``t``.

        Args:
            t: The present time, a number in the user's unit or a timestamp.
            max_delay: The longest delay that is waited for, in the same unit or a ``timedelta``.

        Returns:
            The trials that expired, oldest first.

        Raises:
            InputDataError: if ``t`` is not finite.
            ValueError: if ``max_delay`` is negative or NaN.
        """
        now, longest = self._number(t), self.labels.span(max_delay)
        if not longest >= 0:
            raise ValueError(f"Expected max_delay >= 0, in units of time. Got {max_delay}.")
        overdue = tuple(trial for trial in self.open_trials if now - trial.t > longest)
        for trial in overdue:
            begun, end = self.labels.words(trial.t), self.labels.words(now)
            wait = f"{longest:g}" if self.time_scale is None else str(max_delay)
            late = f"no outcome by t={end}, more than {wait} after t={begun}"
            self.expire(trial, late)
        return overdue

    @abstractmethod
    def _learn(self, trial: Trial, observation: Observations) -> None:
        """Take in one outcome."""

    @property
    def _unit(self) -> float:
        """Order of the prior standard deviation, in the unit of the outcomes."""
        return 1.0

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        """Raise ``InputDataError`` for an outcome with which no later ask could compute."""
        check_outcome(observation, self._unit)

    def _forget(self, lost: LostTrial) -> None:
        """Update the state for a trial whose outcome will not come."""

    def _lose(self, trial: Trial, ending: Ending, reason: str) -> None:
        lost = LostTrial(trial, ending, as_text(reason))
        kind: Kind = "fail" if ending == "failed" else "expire"
        with self._recorded(Event(kind, trial, reason=lost.reason)):
            self._close(trial)
            self._forget(lost)
            self.trial_log.lose(lost)
            if ending == "failed" and not self._is_inner:
                self._count_failure(trial)

    def _count_failure(self, trial: Trial) -> None:
        """Log a warning after some failures in a row, of actions that are alike."""
        self._failing = (*self._failing, trial.X)[-IN_A_ROW:]
        X, bounds = torch.cat(self._failing), self.search_space.bounds
        width = X.amax(dim=0) - X.amin(dim=0)
        if len(X) == IN_A_ROW and bool((width <= 0.1 * (bounds[1] - bounds[0])).all()):
            self._failing = ()
            logger.warning(
                "The last %d trials failed, within a tenth of the space, the newest %s. Where an "
                "outcome that is measured tells what will fail, give it with constraints=, else "
                "leave such actions out of the space.",
                IN_A_ROW,
                trial,
            )

    def _close(self, trial: Trial) -> None:
        del self._open[trial.id]
        self._asked_at = {i: t for i, t in self._asked_at.items() if i != trial.id}

    def _observation(self, trial: Trial, Y: Outcome, Yvar: Outcome | None) -> Observations:
        """Return an outcome as the model sees it."""
        row = self.layout.rows(trial.X, trial.t, self._seen(trial.context))
        noise = None if Yvar is None else self.labels.outcome("Yvar", Yvar)
        return Observations(row, self._signs * self.labels.outcome("Y", Y), noise)

    def _open_trial(self, trial: Trial) -> Trial:
        self._open[trial.id] = trial
        return trial

    def _find(self, trial: Trial | int) -> Trial:
        return find_open(trial, self._open, self.trial_log, self._num_trials)
