"""A run done again from its journal, every choice compared with the one recorded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace as with_changes
from math import isclose
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.journal.errors import JournalError
from tvbo.journal.record import Record
from tvbo.optimizers.events import Event
from tvbo.progress import patient_progress_bar
from tvbo.search_space import FiniteSpace

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


TOLERANCE = 1e-6
"""How far a choice made again may lie from the one recorded: in widths of the box for an action,
relative for what was learned and for an information gain. Another processor rounds otherwise."""

LEAST_GAIN = 1e-12
"""Nats. Gains that differ by less are the same."""


class Comparison:
    """Stands where a recorder does, and compares instead of writing.

    Of an action that differs by rounding only, the recorded one is taken: it is what was tried.

    Args:
        records: What was recorded, in order.
        optimizer: Plays again.
        difference: What has changed since the event of a number, in words.
    """

    def __init__(
        self,
        records: Iterable[tuple[int, Record]],
        optimizer: Optimizer,
        difference: Callable[[int], str],
    ):
        self._records = iter(records)
        self._ahead: deque[tuple[int, Record]] = deque()
        self._optimizer = optimizer
        self._difference = difference

    def next_action(self) -> tuple[int, Record] | None:
        """The next record that something was called for: an ask learns hyperparameters first."""
        for pair in self._ahead:
            if pair[1].kind != "refit":
                return pair
        for pair in self._records:
            self._ahead.append(pair)
            if pair[1].kind != "refit":
                return pair
        return None

    def check(self) -> None:
        """Nothing to check."""

    def agreed(self, X: Tensor) -> Tensor:
        """The action recorded, ``1 x d``, where the one that came differs by rounding only."""
        if (pair := self.next_action()) is None or pair[1].X is None:
            return X
        recorded = X.new_tensor(pair[1].X).unsqueeze(0)
        lower, upper = self._optimizer.search_space.bounds
        if recorded.shape != X.shape or torch.equal(recorded, X):
            return X
        is_near = (recorded - X).abs() <= TOLERANCE * (upper - lower)
        within = (recorded >= lower) & (recorded <= upper)
        # One of a finite set is that one or another.
        is_listed = isinstance(self._optimizer.search_space, FiniteSpace)
        return recorded if not is_listed and (is_near & within).all() else X

    @contextmanager
    def entry(self, *events: Event) -> Iterator[None]:
        """Compare events with those recorded.

        Raises:
            JournalError: at the first that differs.
        """
        for event in events:
            came = Record.of(event, self._optimizer.generator)
            if not self._ahead:
                raise JournalError(f"Expected the end of the journal. Got {came}. {ADVICE}")
            seq, expected = self._ahead.popleft()
            if not _agree(expected, came):
                raise JournalError(self._words(seq, expected, came))
        yield

    def spoil(self, why: str) -> None:
        """Nothing to do: the error that broke the replay says it."""

    def close(self) -> None:
        """Nothing to let go of."""

    def broken(self, seq: int, record: Record, error: Exception) -> JournalError:
        """What to raise where an event cannot be done again."""
        return JournalError(
            f"Expected event {seq} as recorded: {record}. Got {type(error).__name__}: {error}. "
            f"Changed since: {self._difference(seq)}. {ADVICE}"
        )

    def _words(self, seq: int, expected: Record, came: Record) -> str:
        got = str(came)
        if got == str(expected):
            got = "the same, but another state of the random generator or another verdict on it"
        return (
            f"Expected event {seq} as recorded: {expected}. Got {got}. "
            f"Changed since: {self._difference(seq)}. {ADVICE}"
        )


ADVICE = (
    "Open it with the versions and the code that it was recorded with; or save its trials by "
    "`tvbo runs export`, and attach and tell them to a new optimizer."
)


def _agree(recorded: Record, came: Record) -> bool:
    """Whether two records are the same but for the rounding of what was computed."""
    gains = recorded.information_gain, came.information_gain
    if None not in gains and isclose(*gains, rel_tol=TOLERANCE, abs_tol=LEAST_GAIN):
        came = with_changes(came, information_gain=gains[0])
    if recorded.kind == came.kind == "refit" and _same_fit(recorded.fit, came.fit):
        came = with_changes(came, fit=recorded.fit)
    return came.to_row() == recorded.to_row()


def _same_fit(recorded: str, came: str) -> bool:
    """Whether the same parameters were learned, to a relative tolerance."""
    one, two = json.loads(recorded), json.loads(came)
    return one.keys() == two.keys() and all(
        len(one[name]) == len(two[name])
        and all(
            isclose(*pair, rel_tol=TOLERANCE) for pair in zip(one[name], two[name], strict=True)
        )
        for name in one
    )


def replay(
    optimizer: Optimizer,
    records: Iterable[tuple[int, Record]],
    difference: Callable[[int], str],
    num_records: int,
    progress: bool,
) -> None:
    """Do what was recorded again, by the calls that were made.

    Args:
        optimizer: In the state before the first of the records; without a journal.
        records: Numbers and records.
        difference: What has changed since the event of a number, in words.
        num_records: How many there are.
        progress: Show a progress bar on stderr, if it takes longer than some seconds.

    Raises:
        JournalError: if a call gives something else than it did, or raises.
    """
    steps = patient_progress_bar(records, num_records, "Replaying", shown=progress)
    with closing(steps):
        comparison = Comparison(steps, optimizer, difference)
        optimizer._recorder = comparison
        try:
            while (pair := comparison.next_action()) is not None:
                _do_again(optimizer, comparison, *pair)
        finally:
            del optimizer._recorder


def _do_again(optimizer: Optimizer, comparison: Comparison, seq: int, record: Record) -> None:
    try:
        _call(optimizer, record)
        if comparison.next_action() == (seq, record):
            raise RuntimeError(
                f"Expected {record.kind} of {type(optimizer).__name__} to reach that of "
                "Optimizer, which records it. Got nothing to compare"
            )
    except JournalError:
        raise
    except Exception as error:
        raise comparison.broken(seq, record, error) from error


def _call(optimizer: Optimizer, record: Record) -> None:
    match record.kind:
        case "ask":
            optimizer.ask(t=record.t, context=_tensor(record.context))
        case "attach":
            optimizer.attach(_tensor(record.X), record.t, _tensor(record.context))
        case "tell":
            optimizer.tell(record.trial_id, record.Y, record.Yvar)
        case "fail":
            optimizer.fail(record.trial_id, record.reason)
        case "expire":
            optimizer.expire(record.trial_id, record.reason)


def _tensor(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
