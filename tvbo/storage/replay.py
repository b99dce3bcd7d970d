"""Replaying a run from its journal: each call is made again, and takes the recorded action."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tvbo.spaces.search_space import SearchSpace
from tvbo.storage.database import JournalError
from tvbo.storage.event import Event, EventSink, Request
from tvbo.terminal import patient_progress_bar

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer


class RecordedActions(EventSink):
    """What an optimizer is given in a replay: its asks take the recorded actions.

    What was evaluated counts, also where another processor or other code would have chosen
    otherwise.

    Args:
        search_space: The set of actions.

    Attributes:
        asks: The asks of the call that is made again.
    """

    def __init__(self, search_space: SearchSpace):
        self.asks: Sequence[Event] = ()
        self._search_space = search_space

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the recorded actions in place of those chosen, ``q x d``."""
        asks, self.asks = self.asks[: len(X)], self.asks[len(X) :]
        return self._search_space.snap(X.new_tensor([ask.X for ask in asks]))


def replay(optimizer: Optimizer, events: Sequence[tuple[int, Event]], progress: bool) -> None:
    """Make the recorded calls again.

    Args:
        optimizer: In the state before the first of the events; without a journal.
        events: Numbers and events.
        progress: Show a progress bar on stderr, if it takes longer than some seconds.

    Raises:
        JournalError: if a call raises.
    """
    sink = RecordedActions(optimizer.search_space)
    calls = list(_calls(events))
    steps = patient_progress_bar(calls, "Replaying", shown=progress)
    optimizer._event_sink = sink
    optimizer._takes_numbers = True
    try:
        with closing(steps):
            for seq, call in steps:
                try:
                    _repeat(optimizer, sink, call)
                except Exception as error:
                    raise JournalError(
                        f"Expected event {seq} of the journal to be possible: {call[-1]}. Got "
                        f"{type(error).__name__}: {error}. Open it with the versions and the code "
                        "that it was recorded with; or save its trials by `tvbo runs export`, and "
                        "attach and tell them to a new optimizer."
                    ) from error
    finally:
        del optimizer._event_sink, optimizer._takes_numbers


def _calls(events: Sequence[tuple[int, Event]]) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events of each call: one, or a request and its asks; an ask makes refits itself."""
    call: list[Event] = []
    missing: float = 0
    for seq, event in events:
        if event.kind == "refit":
            continue
        if event.kind == "request":
            call, missing = [event], ((event.fit or {}).get("q") or [1])[0]
            continue
        call, missing = [*call, event], missing - 1
        if missing <= 0:
            yield seq, call
            call, missing = [], 0


def _repeat(optimizer: Any, sink: RecordedActions, call: list[Event]) -> None:
    # Which values an event of each kind has was checked by Event.from_row.
    given: Any = call[-1]
    match given.kind:
        case "ask":
            request = Request.of(call.pop(0)) if call[0].kind == "request" else Request()
            sink.asks = call
            context, key = as_tensor(given.context), given.reason or None
            optimizer.ask(given.t, context, key, q=request.q, choices=request.choices)
            if sink.asks:
                raise ValueError("Expected an optimizer that asks for the recorded actions")
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
