"""Replaying a run from its journal: every choice is compared with the recorded one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from math import isclose
from typing import Any

import torch
from torch import Tensor

from tvbo.spaces import FiniteSpace
from tvbo.storage.database import JournalError
from tvbo.storage.record import Record
from tvbo.storage.recorded import Event, Recorded
from tvbo.storage.request import Request
from tvbo.terminal import patient_progress_bar

TOLERANCE = 1e-6
"""Largest difference between a replayed and a recorded choice, since another processor rounds
otherwise: in widths of the box for an action, relative for hyperparameters and information gains.
"""

LEAST_GAIN = 1e-12
"""Nats; information gains that differ by less are the same."""


class Comparison:
    """The :class:`tvbo.storage.recorded.EventSink` of a replay: compares instead of writing.

    Where an action differs by rounding only, the optimizer goes on with the recorded one, which is
    the one that was evaluated.

    Args:
        records: The recorded events, in order.
        optimizer: The one that is replayed.
        changed_since: Returns what has changed since the event of a number, in words.
    """

    def __init__(
        self,
        records: Iterable[tuple[int, Record]],
        optimizer: Recorded,
        changed_since: Callable[[int], str],
    ):
        self._records = iter(records)
        self._ahead: deque[tuple[int, Record]] = deque()
        self._optimizer = optimizer
        self._changed_since = changed_since

    def next_action(self) -> tuple[int, Record] | None:
        """Return the next record of a call; refits before it are made by that call, an ask."""
        return next((pair for pair in self._following() if pair[1].kind != "refit"), None)

    def next_asks(self, count: int) -> list[Record]:
        """Return the next records of asks, of a request at most ``count``."""
        asks: list[Record] = []
        for _, record in self._following():
            if record.kind == "ask":
                asks.append(record)
            elif asks or record.kind not in ("refit", "request"):
                break
            if len(asks) == count:
                break
        return asks

    def _following(self) -> Iterator[tuple[int, Record]]:
        """Return the records that were not compared yet."""
        yield from tuple(self._ahead)
        for pair in self._records:
            self._ahead.append(pair)
            yield pair

    def check(self) -> None:
        """Do nothing: there is always something to compare with, or the end of the journal."""

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the recorded actions, ``q x d``, if ``X`` differs from them by rounding only."""
        if len(asks := self.next_asks(len(X))) < len(X):
            return X
        if any(len(ask.X or ()) != X.shape[-1] for ask in asks):
            return X
        recorded = X.new_tensor([ask.X for ask in asks])
        lower, upper = self._optimizer.search_space.bounds
        if torch.equal(recorded, X):
            return X
        is_near = (recorded - X).abs() <= TOLERANCE * (upper - lower)
        within = (recorded >= lower) & (recorded <= upper)
        # In a finite set, neighbours may be that near and are different actions.
        is_listed = isinstance(self._optimizer.search_space, FiniteSpace)
        return recorded if not is_listed and (is_near & within).all() else X

    @contextmanager
    def transaction(self, *events: Event) -> Iterator[None]:
        """Compare events with the recorded ones.

        Raises:
            JournalError: at the first event that differs.
        """
        for event in events:
            came = Record.of(event, self._optimizer.generator)
            if not self._ahead:
                raise JournalError(f"Expected the end of the journal. Got {came}. {ADVICE}")
            seq, expected = self._ahead.popleft()
            if not _is_same_event(expected, came):
                got = str(came)
                if got == str(expected):
                    got = "the same, but another state of the random generator or another verdict"
                raise self.error(seq, expected, got)
        yield

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do nothing: recorded calls are repeated one by one."""
        yield

    def invalidate(self, why: str) -> None:
        """Do nothing: the error that ended the replay is raised."""

    def close(self) -> None:
        """Do nothing: no file is open."""

    def error(self, seq: int, expected: Record, got: str) -> JournalError:
        """Return the error for an event that cannot be replayed."""
        return JournalError(
            f"Expected event {seq} as recorded: {expected}. Got {got}. "
            f"Changed since: {self._changed_since(seq)}. {ADVICE}"
        )


ADVICE = (
    "Open it with the versions and the code that it was recorded with; or save its trials by "
    "`tvbo runs export`, and attach and tell them to a new optimizer."
)


def _is_same_event(recorded: Record, came: Record) -> bool:
    """Return whether two records are the same but for rounding."""
    gain, other = recorded.information_gain, came.information_gain
    is_near = (
        gain is not None
        and other is not None
        and isclose(gain, other, rel_tol=TOLERANCE, abs_tol=LEAST_GAIN)
    )
    if is_near:
        came = replace(came, information_gain=gain)
    if recorded.kind == came.kind == "refit" and _is_same_fit(recorded.fit, came.fit):
        came = replace(came, fit=recorded.fit)
    return came.to_row() == recorded.to_row()


def _is_same_fit(recorded: str | None, came: str | None) -> bool:
    """Return whether two fits learned the same parameters but for rounding."""
    one, two = json.loads(recorded or "{}"), json.loads(came or "{}")
    return one.keys() == two.keys() and all(
        len(one[name]) == len(two[name])
        and all(
            isclose(*pair, rel_tol=TOLERANCE) for pair in zip(one[name], two[name], strict=True)
        )
        for name in one
    )


def replay(
    optimizer: Recorded,
    records: Iterable[tuple[int, Record]],
    changed_since: Callable[[int], str],
    num_records: int,
    progress: bool,
) -> None:
    """Make the recorded calls again.

    Args:
        optimizer: In the state before the first of the records; without a journal.
        records: Numbers and records.
        changed_since: Returns what has changed since the event of a number, in words.
        num_records: Number of records.
        progress: Show a progress bar on stderr, if it takes longer than some seconds.

    Raises:
        JournalError: if a call has another effect than the recorded one, or raises.
    """
    steps = patient_progress_bar(records, num_records, "Replaying", shown=progress)
    with closing(steps):
        comparison = Comparison(steps, optimizer, changed_since)
        optimizer._event_sink = comparison
        optimizer._takes_numbers = True
        try:
            while (pair := comparison.next_action()) is not None:
                _repeat(optimizer, comparison, *pair)
        finally:
            del optimizer._event_sink, optimizer._takes_numbers


def _repeat(optimizer: Recorded, comparison: Comparison, seq: int, record: Record) -> None:
    try:
        _call(optimizer, comparison, record)
        if comparison.next_action() == (seq, record):
            raise RuntimeError(
                f"Expected {record.kind} of {type(optimizer).__name__} to reach that of "
                "Optimizer, which records it. Got nothing to compare"
            )
    except JournalError:
        raise
    except Exception as error:
        raise comparison.error(seq, record, f"{type(error).__name__}: {error}") from error


def _call(optimizer: Recorded, comparison: Comparison, record: Record) -> None:
    # Which values a record of each kind has was checked by Record.from_row.
    given: Any = record
    match record.kind:
        case "ask":
            optimizer.ask(given.t, _tensor(given.context), given.reason or None)
        case "request":
            wanted = Request.from_values(json.loads(given.fit))
            if not (asks := comparison.next_asks(1)):
                raise ValueError("Expected the asks of this request. Got none")
            first: Any = asks[0]
            optimizer.ask(
                first.t,
                _tensor(first.context),
                first.reason or None,
                q=wanted.q,
                choices=wanted.choices,
            )
        case "attach":
            optimizer.attach(
                torch.tensor([given.X], dtype=torch.float64), given.t, _tensor(given.context)
            )
        case "tell":
            optimizer.tell(given.trial_id, given.Y, given.Yvar)
        case "fail":
            optimizer.fail(given.trial_id, given.reason)
        case "expire":
            optimizer.expire(given.trial_id, given.reason)


def _tensor(values: tuple[float, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float64)
