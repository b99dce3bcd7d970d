"""The ask of every loop: for one action or a batch, among all actions or some."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import overload

from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from tvbo.optimizers.journal_mixin import JournalMixin
from tvbo.optimizers.refusals import LONGEST_REASON, TrialError, as_text
from tvbo.optimizers.units import UnitsMixin
from tvbo.spaces import Context, FiniteSpace, SearchSpace, Table, Time
from tvbo.storage.recorded import Event
from tvbo.storage.request import Request
from tvbo.trial import Trial
from tvbo.values import shortened


class AskMixin(UnitsMixin, JournalMixin):
    """Suggests actions: what is the same whatever the rule that chooses them."""

    # Trials asked with a key of the caller's: their numbers, or those that were skipped. Empty in
    # optimizers that were pickled before there were keys.
    _by_key: Mapping[str, int | Trial] = MappingProxyType({})
    _num_trials: int
    _num_asked: int
    _takes_requests: bool = False
    """Whether it can choose a batch, or among some actions."""

    @property
    def repeats_open_trials(self) -> bool:
        """Whether nothing keeps it from asking the same again while a trial is open."""
        return False

    @property
    def _chooses_jointly(self) -> bool:
        """Whether the actions of a batch are chosen together."""
        return False

    @overload
    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        q: None = None,
        choices: Table | None = None,
    ) -> Trial: ...

    @overload
    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        q: int,
        choices: Table | None = None,
    ) -> tuple[Trial, ...]: ...

    @overload
    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        q: int | None = None,
        choices: Table | None = None,
    ) -> Trial | tuple[Trial, ...]: ...

    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        q: int | None = None,
        choices: Table | None = None,
    ) -> Trial | tuple[Trial, ...]:
        """Suggest the next action, or a batch of actions.

        Args:
            t: The present time, a number in the user's unit or a timestamp, also in ISO 8601, never
                before that of an open ask or of an outcome told; None counts rounds 1, 2, ...
            context: The present context, where contexts were declared: ``c`` numbers, or a dict or
                Series by name. Several asks at one time, with a tell after each, see one another's
                outcomes.
            key: A key of the caller's own, such as the number of a request: asked again with it,
                since an answer was lost, the optimizer returns the same trial and asks for no new
                one. None: each ask is a new one.
            q: Number of actions of a batch, which is one round; None asks for one action. Those of
                a Monte Carlo acquisition of BoTorch are chosen jointly; for others each action
                counts as pending when the next one is chosen.
            choices: The actions that can be chosen now, some of the search space: ``n x d``, a
                table with a row for each, or lists of values by name, of which all combinations
                are meant. None: all.

        Returns:
            A trial, open until it is told, fails or expires, unless it is ``skipped``; of a batch a
            tuple of ``q``. Where choices are given, its ``choice`` is the row that was chosen.

        Raises:
            InputDataError: if ``t`` is not finite, or lies before an open ask or an outcome;
                ``context`` is not finite or none of those declared; a row of ``choices`` is no
                action; ``q`` is not a whole number of at least 1, or comes with a key.
            BotorchTensorDimensionError: if ``context`` has the wrong size, is missing, or none was
                declared; or ``choices`` have the wrong size.
            TrialError: if the trial of this key has ended, was asked in another context, or is none
                of the choices.
            UnsupportedError: if ``q`` or ``choices`` are given to a rule that chooses one action
                among all, or a batch is asked of one for which pending trials do not count.
        """
        request = self._read_request(q, choices, key)
        if key is not None and (known := self._asked_with(key, context, request)) is not None:
            return known
        self._check_can_ask()
        t = self._time_to_ask(t, self._num_asked + 1)
        context = self._check_context(context)
        # A batch is recorded as a whole or not at all.
        together = nullcontext() if q is None else self._in_one_transaction()
        with self._invalidated_on_error(), together:
            trials = self._ask_for(request, t, context, key)
        return trials[0] if q is None else trials

    def _ask_for(
        self, request: Request | None, t: float, context: Tensor | None, key: str | None
    ) -> tuple[Trial, ...]:
        """Choose actions and open their trials."""
        round_number, space, q = self._num_asked + 1, self.search_space, 1
        before: list[Event] = []
        if request is not None:
            space, q, before = self._space_of(request.choices), request.q or 1, [request.event]
        opened: list[Trial] = []
        with self._ended_on_error(opened):
            while len(opened) < q:
                if request is None:
                    X = self._choose(round_number, t, context)
                else:
                    X = self._choose_among(space, q - len(opened), t, context)
                new = [self._new_trial(x, t, context, key) for x in self._reconciled(X).split(1)]
                if request is not None:
                    new = [replace(each, choice=request.place(each.X)) for each in new]
                trials = [self._judge(each) for each in new]
                asks = [Event("ask", trial, reason=key or "") for trial in trials]
                with self._recorded(*before, *self._refits(), *asks):
                    self._num_asked = round_number
                    for trial in trials:
                        self._remember(key, trial)
                        if not trial.skipped:
                            self._open_trial(trial)
                            self._asked_at = {**self._asked_at, trial.id: t}
                before = []
                opened += trials
        return tuple(opened)

    @contextmanager
    def _ended_on_error(self, opened: list[Trial]) -> Iterator[None]:
        """Expire the trials of a batch that the caller never gets, since the body raised.

        With a journal, the batch was never written, and the optimizer cannot be used any more.
        """
        try:
            yield
        except BaseException:
            if self._event_sink is None:
                for trial in opened:
                    if not trial.skipped:
                        self.expire(trial, "the ask for its batch was interrupted")
            raise

    def _remember(self, key: str | None, trial: Trial) -> None:
        if key is not None:
            self._by_key = {**self._by_key, key: trial if trial.skipped else trial.id}

    def _check_can_ask(self) -> None:
        """Raise if no further ask is planned for."""

    @abstractmethod
    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        """Return the action of this round, ``1 x d``."""

    def _choose_among(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        """Return at least one and at most ``q`` actions of a set, chosen together.

        Called only where ``_takes_requests``.
        """
        raise NotImplementedError

    def _judge(self, trial: Trial) -> Trial:
        """Return the trial with the prediction of its outcome, where a model gives one."""
        return trial

    def _refits(self) -> list[Event]:
        """Return the hyperparameters fitted in this ask, as events of the journal."""
        return []

    @abstractmethod
    def expire(self, trial: Trial | int, reason: str) -> None:
        """Stop waiting for the outcome of a trial."""

    @abstractmethod
    def _open_trial(self, trial: Trial) -> Trial:
        """Take a trial as open."""

    @abstractmethod
    def _find(self, trial: Trial | int) -> Trial:
        """Return an open trial by its number; raise ``TrialError`` if there is none."""

    def _read_request(
        self, q: int | None, choices: Table | None, key: str | None
    ) -> Request | None:
        """Return what an ask is for; None for one action of all."""
        if q is None and choices is None:
            return None
        if not self._takes_requests:
            raise UnsupportedError(
                "Expected an ask for one action among all: this rule knows no other. Got "
                f"{'q' if choices is None else 'choices'} for {type(self).__name__}."
            )
        if q is not None:
            if isinstance(q, bool) or not isinstance(q, int) or q < 1:
                raise InputDataError(f"Expected q, a number of actions of at least 1. Got {q!r}.")
            if key is not None:
                raise InputDataError(
                    f"Expected either q or a key, of one trial. Got {shortened(repr(key))}."
                )
            if q > 1 and self.repeats_open_trials and not self._chooses_jointly:
                raise UnsupportedError(
                    f"Expected pending trials that count, in a batch of {q}: otherwise all of its "
                    "actions are the same. Got pending=IgnorePending()."
                )
        return Request(q, None if choices is None else self._read_choices(choices))

    def _space_of(self, choices: Tensor | None) -> SearchSpace:
        """Return the set of some actions, ``n x d``; None is all."""
        space = self.search_space
        if choices is None:
            return space
        return FiniteSpace(choices.unique(dim=0), parameters=space.parameters)

    def _space_among(self, choices: Table | None) -> SearchSpace:
        """Return the set of the choices that a caller gives; None is all."""
        return self._space_of(None if choices is None else self._read_choices(choices))

    def _asked_with(
        self, key: str, context: Context | None, request: Request | None
    ) -> Trial | None:
        """Return the trial of a key; None if there is none yet."""
        if not isinstance(key, str) or not key or as_text(key) != key:
            words = shortened(repr(key))
            raise InputDataError(
                f"Expected a key in text of at most {LONGEST_REASON} characters. Got {words}."
            )
        if (known := self._by_key.get(key)) is None:
            return None
        trial = known if isinstance(known, Trial) else self._find(known)
        asked = self._trial(trial.id, trial.X, trial.t, self._check_context(context))
        if not trial.asks_the_same(asked):
            raise TrialError(
                f"Expected the context of the ask with key {shortened(repr(key))}, {trial}. Got "
                "another."
            )
        if request is None:
            return trial
        if (choice := request.place(trial.X)) is None:
            raise TrialError(
                f"Expected the action of the ask with key {shortened(repr(key))} among the "
                f"choices, {trial}. Got others."
            )
        return replace(trial, choice=choice)

    def _new_trial(
        self, X: Tensor, t: float, context: Tensor | None, key: str | None = None
    ) -> Trial:
        self._num_trials += 1
        return self._trial(self._num_trials, X, t, context, key)

    def _trial(
        self, number: int, X: Tensor, t: float, context: Tensor | None, key: str | None = None
    ) -> Trial:
        return Trial(number, X, t, context, labels=self.labels, key=key)
