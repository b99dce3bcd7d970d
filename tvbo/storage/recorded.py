"""What can be recorded: an optimizer, whose changes are events, and what receives these."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Generator, Tensor

from tvbo.spaces.context_space import ContextSpace
from tvbo.spaces.labels import Labels, Outcome
from tvbo.spaces.observations import InputLayout
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial
from tvbo.values import shortened

LONGEST_WORDS = 1_000
"""Characters to which an event in words is cut."""

Kind = Literal["request", "ask", "attach", "tell", "fail", "expire", "refit"]


@dataclass(frozen=True)
class Event:
    """One change of an optimizer.

    Args:
        kind: What was done.
        trial: The trial that it was done to; None for a refit or a request, which goes before the
            asks for a batch or for one of some choices.
        Y: The outcomes told, ``m`` numbers.
        Yvar: Variances of their noise, if told.
        reason: Why a trial failed or expired; of an ask, the caller's key.
        fit: Hyperparameters that a refit learned, values by name of the parameter; or what a
            request is for (:class:`tvbo.storage.request.Request`).
    """

    kind: Kind
    trial: Trial | None = None
    Y: tuple[float, ...] | None = None
    Yvar: tuple[float, ...] | None = None
    reason: str = ""
    fit: dict[str, list[float]] | None = None

    def __str__(self) -> str:
        if self.trial is None:
            return shortened(f"{self.kind}: {self.fit}", LONGEST_WORDS)
        words = f"{self.kind}: {self.trial}"
        words += "" if self.Y is None else f", outcome {' '.join(f'{Y:g}' for Y in self.Y)}"
        return shortened(words + (f" ({self.reason})" if self.reason else ""), LONGEST_WORDS)


class EventSink(Protocol):
    """Receives the changes of an optimizer before they take effect.

    The journal's writer stores them, a replay compares them with those stored.
    """

    def check(self) -> None:
        """Raise if the optimizer may differ from what was stored, or the journal is closed.

        Called before an event draws from the random generator, which no other code may have used.
        """

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the actions to take, ``q x d``, where ``X`` was chosen.

        A replay returns the recorded actions, where both differ by rounding only.
        """

    def transaction(self, *events: Event) -> AbstractContextManager[None]:
        """Return a context manager whose body makes the events take effect.

        They are committed when the body has ended. If it raises, they were never stored, and the
        optimizer can no longer be used; except for an ``InputDataError``, which is raised before
        anything has changed.
        """

    def together(self) -> AbstractContextManager[None]:
        """Return a context manager whose body's transactions are committed when it ends.

        If it raises, none of them was ever stored, and the optimizer can no longer be used.
        """

    def invalidate(self, why: str) -> None:
        """Refuse further events, since a change was interrupted."""

    def close(self) -> None:
        """Release the journal."""


class Recorded(Protocol):
    """An optimizer as a journal sees it: its calls can be made again, and its events received.

    :class:`tvbo.optimizers.Optimizer` is one. Its other attributes are stored as they are.
    """

    search_space: SearchSpace
    contexts: ContextSpace | None
    layout: InputLayout
    generator: Generator
    minimize: bool
    _event_sink: EventSink | None
    _takes_numbers: bool

    @property
    def labels(self) -> Labels:
        """Names of parameters, and the unit of time."""

    @property
    def open_trials(self) -> tuple[Trial, ...]:
        """Trials that were not told yet, and did not fail or expire; oldest first."""

    @property
    def num_trials(self) -> int:
        """Number of trials so far."""

    def ask(
        self,
        t: float | None = None,
        context: Tensor | None = None,
        key: str | None = None,
        *,
        q: int | None = None,
        choices: Tensor | None = None,
    ) -> Trial | tuple[Trial, ...]:
        """Suggest the next action, or several."""

    def attach(self, X: Tensor, t: float, context: Tensor | None = None) -> Trial:
        """Open a trial with an action of the caller's choice."""

    def tell(self, trial: Trial | int, Y: Outcome, Yvar: Outcome | None = None) -> None:
        """Record the outcome of a trial."""

    def fail(self, trial: Trial | int, reason: str) -> None:
        """Record that a trial has no outcome."""

    def expire(self, trial: Trial | int, reason: str = "past its deadline") -> None:
        """Stop waiting for the outcome of a trial."""

    def close(self) -> None:
        """Close the journal, if there is one."""
