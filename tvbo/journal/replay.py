"""A run done again from its journal, every choice compared with the one recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tvbo.journal.errors import JournalError
from tvbo.journal.record import Record
from tvbo.optimizers.events import Event

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


class Comparison:
    """Stands where a recorder does, and compares instead of writing.

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

    @contextmanager
    def entry(self, *events: Event) -> Iterator[None]:
        """Compare events with those recorded.

        Raises:
            JournalError: at the first that differs.
        """
        for event in events:
            came = Record.of(event, self._optimizer.generator)
            seq, expected = self._ahead.popleft()
            if came.to_row() != expected.to_row():
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


def replay(
    optimizer: Optimizer,
    records: Iterable[tuple[int, Record]],
    difference: Callable[[int], str],
) -> None:
    """Do what was recorded again, by the calls that were made.

    Args:
        optimizer: In the state before the first of the records; without a journal.
        records: Numbers and records.
        difference: What has changed since the event of a number, in words.

    Raises:
        JournalError: if a call gives something else than it did, or raises.
    """
    comparison = Comparison(records, optimizer, difference)
    optimizer._recorder = comparison
    try:
        while (pair := comparison.next_action()) is not None:
            seq, record = pair
            try:
                _call(optimizer, record)
                if comparison.next_action() == pair:
                    raise RuntimeError(
                        f"Expected {record.kind} of {type(optimizer).__name__} to reach that of "
                        "Optimizer, which records it. Got nothing to compare"
                    )
            except JournalError:
                raise
            except Exception as error:
                raise comparison.broken(seq, record, error) from error
    finally:
        del optimizer._recorder


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
        case _:
            raise ValueError(f"Expected a kind of event that is known. Got {record.kind!r}.")


def _tensor(values: tuple[float, ...] | None) -> torch.Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
