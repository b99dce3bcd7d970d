"""The changes of an optimizer as events, and the interface of what receives them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from tvbo.optimizers.trial import Trial

Kind = Literal["ask", "attach", "tell", "fail", "expire", "refit"]


@dataclass(frozen=True)
class Event:
    """One change of an optimizer.

    Args:
        kind: What was done.
        trial: The trial that it was done to; None for a refit.
        Y: The outcome told.
        Yvar: Variance of its noise, if told.
        reason: Why a trial failed or expired.
        fit: Hyperparameters that a refit learned: values by name of the parameter.
    """

    kind: Kind
    trial: Trial | None = None
    Y: float | None = None
    Yvar: float | None = None
    reason: str = ""
    fit: dict[str, list[float]] | None = None


class EventSink(Protocol):
    """Receives the changes of an optimizer before they take effect.

    The journal's writer stores them, a replay compares them with those stored.
    """

    def check(self) -> None:
        """Raise if the optimizer may differ from what was stored, or the journal is closed.

        Called before an event draws from the random generator, which no other code may have used.
        """

    def reconcile(self, X: Tensor) -> Tensor:
        """Return the action to take, ``1 x d``, where ``X`` was chosen.

        A replay returns the recorded action, where both differ by rounding only.
        """

    def transaction(self, *events: Event) -> AbstractContextManager[None]:
        """Return a context manager whose body makes the events take effect.

        They are committed when the body has ended. If it raises, they were never stored, and the
        optimizer can no longer be used; except for an ``InputDataError``, which is raised before
        anything has changed.
        """

    def invalidate(self, why: str) -> None:
        """Refuse further events, since a change was interrupted."""

    def close(self) -> None:
        """Release the journal."""
