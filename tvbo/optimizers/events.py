"""What changes an optimizer, one record for each change, and who may write them down."""

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
        fit: What a refit learned: values by name of the parameter.
    """

    kind: Kind
    trial: Trial | None = None
    Y: float | None = None
    Yvar: float | None = None
    reason: str = ""
    fit: dict[str, list[float]] | None = None


class Recorder(Protocol):
    """Writes events down before they take effect; see :mod:`tvbo.journal`."""

    def check(self) -> None:
        """Raise if the optimizer can no longer be trusted, or the record was closed.

        Called before an event draws from the generator, which nobody else may have used.
        """

    def agreed(self, X: Tensor) -> Tensor:
        """The action to take, ``1 x d``, where ``X`` was chosen.

        A replay takes the one recorded, where both differ by rounding only.
        """

    def entry(self, *events: Event) -> AbstractContextManager[None]:
        """Write events; the body of the ``with`` makes them take effect, and may undo them.

        They count once the body has ended. If it raises, they were never written, and the
        optimizer is spoiled; not by an ``InputDataError``, before which nothing may change.
        """

    def spoil(self, why: str) -> None:
        """A change broke half-way: what is in memory may differ from what was written."""

    def close(self) -> None:
        """Let go of the record."""
