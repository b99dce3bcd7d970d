"""Changes of an optimizer, and what a record of a run has of each of its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

import torch

from tvbo.spaces.labels import Labels
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
        asked: Of an ask, the time at which it was made.
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
    asked: float | None = None
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


class RecordedTrial(NamedTuple):
    """A trial as a record of the run has it.

    Args:
        id: Its number.
        round: Number of the round in which it was asked for; None where it was attached.
        t: Its time.
        asked: When it was asked for; None where it was attached.
        measured: When its outcomes were measured; None if that was at its time.
        X: The action, ``d`` numbers.
        context: The context, ``c`` numbers; None without.
        key: The caller's key; None without.
        state: ``"open"``, ``"told"``, ``"failed"``, ``"expired"`` or ``"skipped"``.
        informative: Whether its outcome enters the model.
        information_gain: What its outcome was expected to tell, in nats; None if it was not asked.
        reason: Why it has no outcome.
        rejection: Why its outcome does not enter the model.
        opened: When it was opened: a number that increases with each change of the run.
        ended: When it ended, likewise; None while it has not.
        dropped: As of :class:`Event`.
        Y: Its outcomes, ``m`` numbers; none where it has not been told.
        Yvar: Variances of their noise, if they are known.
    """

    id: int
    round: int | None
    t: float
    asked: float | None
    measured: float | None
    X: Sequence[float]
    context: Sequence[float] | None
    key: str | None
    state: str
    informative: bool
    information_gain: float | None
    reason: str
    rejection: str
    opened: int
    ended: int | None
    dropped: Sequence[Sequence[int]]
    Y: Sequence[float]
    Yvar: Sequence[float]

    @property
    def observed_at(self) -> float:
        """Time of its observation."""
        return self.t if self.measured is None else self.measured


def trial_of(recorded: RecordedTrial, labels: Labels) -> Trial:
    """Return the trial of a record."""
    context = recorded.context
    return Trial(
        recorded.id,
        torch.tensor([recorded.X], dtype=torch.float64),
        recorded.t,
        None if context is None else torch.tensor(context, dtype=torch.float64),
        informative=recorded.informative,
        information_gain=recorded.information_gain,
        skipped=recorded.state == "skipped",
        labels=labels,
        key=recorded.key,
    )


def in_order(trials: Sequence[RecordedTrial]) -> Iterator[tuple[RecordedTrial, bool]]:
    """Iterate over the changes of a run in their order: a trial, and whether it ends there."""
    changes = [(each.opened, each.id, False, each) for each in trials]
    changes += [(each.ended, each.id, True, each) for each in trials if each.ended is not None]
    for *_, ends, each in sorted(changes, key=itemgetter(0, 1, 2)):
        yield each, ends


class Settings(NamedTuple):
    """What an optimizer was built from, by which the record of a run builds it again.

    Args:
        recipe: Name of the recipe.
        options: Its arguments, as they were given.
    """

    recipe: str
    options: Mapping[str, Any]


class Record(Protocol):
    """Where the changes of an optimizer are recorded, and those of others are read.

    Attributes:
        url: The file or URL.
    """

    url: str

    def refresh(self, optimizer: Any) -> None:
        """Have the optimizer take in what others have changed."""

    def transaction(self, optimizer: Any, events: Sequence[Event]) -> AbstractContextManager[None]:
        """Return a context manager whose body makes a change, after what others have changed.

        The events that the body adds are on disk when it has ended. If it raises, none is, and the
        optimizer takes the state of the record before its next call.
        """

    def close(self) -> None:
        """Refuse further changes."""
