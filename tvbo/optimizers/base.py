"""The book-keeping of every ask/tell loop: rounds, open trials, and what is refused."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.journal.recorded import Event, Kind
from tvbo.observations import Observations
from tvbo.optimizers.journal_mixin import JournalMixin
from tvbo.optimizers.refusals import (
    TrialError,
    as_text,
    check_outcome,
    find_open,
)
from tvbo.optimizers.tables import TablesMixin
from tvbo.optimizers.trial_log import Ending, LostTrial, TrialLog
from tvbo.optimizers.units import UnitsMixin
from tvbo.randomness import default_generator
from tvbo.search_space import (
    Context,
    ContextSpace,
    InputLayout,
    Named,
    Outcome,
    SearchSpace,
    Time,
)
from tvbo.terminal import html_table
from tvbo.trial import Trial


class Optimizer(UnitsMixin, TablesMixin, JournalMixin, ABC):
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

    # Trials asked with a key of the caller's: their numbers, or those that were skipped. Empty in
    # optimizers that were pickled before there were keys.
    _by_key: Mapping[str, int | Trial] = MappingProxyType({})

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
        self._t = -math.inf

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
    def repeats_open_trials(self) -> bool:
        """Whether nothing keeps it from asking the same again while a trial is open."""
        return False

    @property
    def model_size(self) -> int:
        """Number of observations that the next action rests on."""
        return 0

    def ask(
        self, t: Time | None = None, context: Context | None = None, key: str | None = None
    ) -> Trial:
        """Suggest the next action.

        Args:
            t: The present time, a number in the user's unit or a timestamp, never before that of an
                earlier ask or of an outcome told; None counts rounds 1, 2, ...
            context: The present context, where contexts were declared: ``c`` numbers, or a dict or
                Series by name. Several asks at one time, with a tell after each, see one another's
                outcomes.
            key: A key of the caller's own, such as the number of a request: asked again with it,
                since an answer was lost, the optimizer returns the same trial and asks for no new
                one. None: each ask is a new one.

        Returns:
            A trial, open until it is told, fails or expires, unless it is ``skipped``.

        Raises:
            InputDataError: if ``t`` is not finite, or lies before an earlier ask or outcome, or
                ``context`` is not finite or none of those declared.
            BotorchTensorDimensionError: if ``context`` has the wrong size, is missing, or none was
                declared.
            TrialError: if the trial of this key has ended, or was asked in another context.
        """
        if key is not None and (known := self._asked_with(key, context)) is not None:
            return known
        round_number = self._num_asked + 1
        t = self._time_to_ask(t, round_number)
        context = self._check_context(context)
        with self._invalidated_on_error():
            X = self._reconciled(self._choose(round_number, t, context))
            trial = self._judge(self._new_trial(X, t, context, key))
            with self._recorded(*self._refits(), Event("ask", trial, reason=key or "")):
                self._num_asked = round_number
                if key is not None:
                    self._by_key = {**self._by_key, key: trial if trial.skipped else trial.id}
                self._t = t
                if not trial.skipped:
                    self._open_trial(trial)
        return trial

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
            del self._open[trial.id]
            self._t = max(self._t, trial.t)
            self.trial_log.num_told += 1

    def fail(self, trial: Trial | int, reason: str) -> None:
        """Record that a trial has no outcome: a crash, an invalid value, a patient lost.

        The model learns nothing from it, and it no longer counts as pending.

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
    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        """Return the action of this round, ``1 x d``."""

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

    def _refits(self) -> list[Event]:
        """Return the hyperparameters fitted in this ask, as events of the journal."""
        return []

    def _lose(self, trial: Trial, ending: Ending, reason: str) -> None:
        lost = LostTrial(trial, ending, as_text(reason))
        kind: Kind = "fail" if ending == "failed" else "expire"
        with self._recorded(Event(kind, trial, reason=lost.reason)):
            self._forget(lost)
            del self._open[trial.id]
            self.trial_log.lose(lost)

    def _asked_with(self, key: str, context: Context | None) -> Trial | None:
        """Return the trial of a key; None if there is none yet."""
        if not isinstance(key, str) or not key or as_text(key) != key:
            raise InputDataError(f"Expected a key in text. Got {key!r}.")
        if (known := self._by_key.get(key)) is None:
            return None
        trial = known if isinstance(known, Trial) else self._find(known)
        asked = self._trial(trial.id, trial.X, trial.t, self._check_context(context))
        if not trial.asks_the_same(asked):
            raise TrialError(
                f"Expected the context of the ask with key {key!r}, {trial}. Got another."
            )
        return trial

    def _judge(self, trial: Trial) -> Trial:
        """Return the trial with the prediction of its outcome, where a model gives one."""
        return trial

    def _new_trial(
        self, X: Tensor, t: float, context: Tensor | None, key: str | None = None
    ) -> Trial:
        self._num_trials += 1
        return self._trial(self._num_trials, X, t, context, key)

    def _trial(
        self, number: int, X: Tensor, t: float, context: Tensor | None, key: str | None = None
    ) -> Trial:
        return Trial(number, X, t, context, labels=self.labels, key=key)

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
