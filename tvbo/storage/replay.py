"""Replaying a run from its journal: every choice is compared with the recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from math import isclose
from typing import Any

import torch
from torch import Tensor

from tvbo.spaces import FiniteSpace
from tvbo.storage.database import JournalError
from tvbo.storage.event import Event, Recorded, Request
from tvbo.terminal import patient_progress_bar

TOLERANCE = 1e-6
"""Largest difference between a replayed and a recorded choice, since another processor rounds
otherwise: in widths of the box for an action, relative for hyperparameters and information gains.
"""

LEAST_GAIN = 1e-12
"""Nats; information gains that differ by less are the same."""

ADVICE = (
    "Open it with the versions and the code that it was recorded with; or save its trials by "
    "`tvbo runs export`, and attach and tell them to a new optimizer."
)


class Comparison:
    """The :class:`tvbo.storage.event.EventSink` of a replay: compares instead of writing.

    Where an action differs by rounding only, the optimizer goes on with the recorded one, which is
    the one that was evaluated.

    Args:
        events: Numbers and recorded events, in order.
        optimizer: The one that is replayed.
        changed: Which versions have changed since, as text.

    Attributes:
        place: Place of the next event to compare with.
    """

    def __init__(
        self,
        events: Sequence[tuple[int, Event]],
        optimizer: Recorded,
        changed: str,
    ):
        self.place = 0
        self._events = events
        self._optimizer = optimizer
        self._changed = changed

    def next_asks(self, count: int) -> list[Event]:
        """Return the next events of asks, of a request at most ``count``."""
        asks: list[Event] = []
        for place in range(self.place, len(self._events)):
            _, event = self._events[place]
            if event.kind == "ask":
                asks.append(event)
            elif asks or event.kind not in ("refit", "request"):
                break
            if len(asks) == count:
                break
        return asks

    def check(self) -> None:
        """Do nothing: there is always something to compare with, or the end of the journal."""

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the recorded actions, ``q x d``, if ``X`` differs from them by rounding only."""
        if len(asks := self.next_asks(len(X))) < len(X):
            return X
        if any(len(ask.X) != X.shape[-1] for ask in asks):
            return X
        recorded = X.new_tensor([ask.X for ask in asks])
        lower, upper = self._optimizer.search_space.bounds
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
            came = event.stored(self._optimizer.generator)
            if self.place == len(self._events):
                raise JournalError(f"Expected the end of the journal. Got {came}. {ADVICE}")
            seq, expected = self._events[self.place]
            self.place += 1
            if not _is_same_event(expected, came):
                got = str(replace(came, trial=None))
                if got == str(expected):
                    got = "the same, but another state of the random generator or another verdict"
                raise self.error(seq, expected, got)
        yield

    def invalidate(self, why: str) -> None:
        """Do nothing: the error that ended the replay is raised."""

    def close(self) -> None:
        """Do nothing: no file is open."""

    def error(self, seq: int, expected: Event, got: str) -> JournalError:
        """Return the error for an event that cannot be replayed."""
        return JournalError(
            f"Expected event {seq} as recorded: {expected}. Got {got}. "
            f"Changed since: {self._changed}. {ADVICE}"
        )


def _is_same_event(recorded: Event, came: Event) -> bool:
    """Return whether two events are the same but for rounding."""
    gain, other = recorded.information_gain, came.information_gain
    if (
        gain is not None
        and other is not None
        and isclose(gain, other, rel_tol=TOLERANCE, abs_tol=LEAST_GAIN)
    ):
        came = replace(came, information_gain=gain)
    if recorded.fit and came.fit and _are_near(recorded.fit, came.fit):
        came = replace(came, fit=recorded.fit)
    return came.to_row() == recorded.to_row()


def _are_near(one: dict[str, list[float]], two: dict[str, list[float]]) -> bool:
    """Return whether two fits learned the same parameters but for rounding."""
    return one.keys() == two.keys() and all(
        len(values) == len(two[name])
        and all(isclose(*pair, rel_tol=TOLERANCE) for pair in zip(values, two[name], strict=True))
        for name, values in one.items()
    )


def replay(
    optimizer: Recorded,
    events: Sequence[tuple[int, Event]],
    changed: str,
    progress: bool,
) -> None:
    """Make the recorded calls again.

    Args:
        optimizer: In the state before the first of the events; without a journal.
        events: Numbers and events.
        changed: Which versions have changed since, as text.
        progress: Show a progress bar on stderr, if it takes longer than some seconds.

    Raises:
        JournalError: if a call has another effect than the recorded one, or raises.
    """
    comparison = Comparison(events, optimizer, changed)
    steps = patient_progress_bar(range(len(events)), len(events), "Replaying", shown=progress)
    optimizer._event_sink = comparison
    optimizer._takes_numbers = True
    try:
        with closing(steps):
            for place in steps:
                seq, event = events[place]
                # A refit, and the asks of a request, are made by one call.
                if place < comparison.place or event.kind == "refit":
                    continue
                try:
                    _repeat(optimizer, comparison, event)
                    if comparison.place <= place:
                        raise RuntimeError(
                            f"Expected {event.kind} of {type(optimizer).__name__} to reach that of "
                            "Optimizer, which records it. Got nothing to compare"
                        )
                except JournalError:
                    raise
                except Exception as error:
                    raise comparison.error(
                        seq, event, f"{type(error).__name__}: {error}"
                    ) from error
    finally:
        del optimizer._event_sink, optimizer._takes_numbers


def _repeat(optimizer: Recorded, comparison: Comparison, event: Event) -> None:
    # Which values an event of each kind has was checked by Event.from_row.
    given: Any = event
    match event.kind:
        case "ask":
            optimizer.ask(given.t, as_tensor(given.context), given.reason or None)
        case "request":
            wanted = Request.of(event)
            if not (asks := comparison.next_asks(1)):
                raise ValueError("Expected the asks of this request. Got none")
            first: Any = asks[0]
            context, key = as_tensor(first.context), first.reason or None
            optimizer.ask(first.t, context, key, q=wanted.q, choices=wanted.choices)
        case "attach":
            X = torch.tensor([given.X], dtype=torch.float64)
            optimizer.attach(X, given.t, as_tensor(given.context))
        case "tell":
            optimizer.tell(given.trial_id, given.Y, given.Yvar or None)
        case "fail":
            optimizer.fail(given.trial_id, given.reason)
        case "expire":
            optimizer.expire(given.trial_id, given.reason)


def as_tensor(values: tuple[float, ...]) -> Tensor | None:
    """Return numbers of an event as a tensor; None if there are none."""
    return torch.tensor(values, dtype=torch.float64) if values else None
