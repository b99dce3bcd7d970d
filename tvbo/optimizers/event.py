"""Changes of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tvbo.trial import Trial
from tvbo.values import shortened

Kind = Literal["ask", "attach", "tell", "fail", "expire", "refit"]

MAX_DESCRIPTION = 1_000
"""Characters to which an event as text is cut."""


@dataclass(frozen=True)
class Event:
    """One change of an optimizer.

    Args:
        kind: What was done.
        trial: The trial; None for a refit.
        round: Of an ask, the number of the round, in which the trials of a batch are together.
        measured: The time at which the outcomes were measured, if it is another than the trial's.
        Y: The outcomes observed, ``m`` numbers in the caller's units.
        Yvar: Variances of their noise, if they are known.
        reason: Why a trial failed or expired, or why its outcome is not wanted.
        fit: Hyperparameters that a refit learned, values by name of the parameter.
        dropped: Of an ask, the numbers of the trials whose observations were discarded for it, of
            each outcome.
        predicted: Of an ask that is recorded, what the model predicted
            (:meth:`Optimizer._predicted`), and the ``seconds`` that it took.
    """

    kind: Kind
    trial: Trial | None = None
    round: int = 0
    measured: float | None = None
    Y: tuple[float, ...] = ()
    Yvar: tuple[float, ...] = ()
    reason: str = ""
    fit: dict[str, list[float]] | None = None
    dropped: Sequence[Sequence[int]] = ()
    predicted: Mapping[str, Any] = field(default_factory=dict)

    def notify(self, listener: Callable[..., object] | None) -> None:
        """Call a function of ``Optimizer.add_listener``, if there is one for this kind."""
        if listener is None:
            return
        if self.trial is None:
            listener(self.fit)
        elif self.Y:
            listener(self.trial, self.trial.labels.outcomes_by_name(self.Y))
        elif self.kind == "ask":
            listener(self.trial)
        else:
            listener(self.trial, self.reason)

    def __str__(self) -> str:
        text = f"{self.kind}: {self.fit if self.trial is None else self.trial}"
        for name, numbers in (("outcome", self.Y), ("variance", self.Yvar)):
            text += f", {name} {' '.join(map(str, numbers))}" if numbers else ""
        return shortened(text + (f" ({self.reason})" if self.reason else ""), MAX_DESCRIPTION)


class Settings(NamedTuple):
    """What an optimizer was built from, by which the record of a run builds it again.

    Args:
        recipe: Name of the recipe.
        options: Its arguments, as they were given.
    """

    recipe: str
    options: Mapping[str, Any]
