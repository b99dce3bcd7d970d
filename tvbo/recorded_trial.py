"""A trial as a record of a run has it; nothing is imported for a model here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

State = Literal["told", "open", "failed", "expired", "skipped"]
"""What has become of a trial."""

COPIED = ("id", "asked", "key", "informative", "information_gain")
"""What a record has of a trial as it is."""


class RecordedTrial(NamedTuple):
    """A trial as a record of the run has it: a row of its table, which has these columns.

    Args:
        id: Its number.
        round: Number of the round in which it was asked for; None where it was attached.
        t: Its time.
        asked: When it was asked for; None where it was attached.
        measured: When its outcomes were measured; None if that was at its time.
        nanoseconds: Its timestamp, since 1970; None where times are numbers.
        parameters: The values of action and context by name.
        X: The action, ``d`` numbers.
        context: The context, ``c`` numbers; None without.
        key: The caller's key; None without.
        state: What has become of it.
        informative: Whether its outcome enters the model.
        information_gain: What its outcome was expected to tell, in nats; None if it was not asked.
        reason: Why it has no outcome.
        rejection: Why its outcome does not enter the model.
        opened: When it was opened: a number that increases with each change of the run.
        opened_at: The same in seconds since 1970.
        opened_by: Who opened it.
        ended: When it ended, as ``opened``; None while it has not.
        ended_at: The same in seconds since 1970.
        Y: Its outcomes, ``m`` numbers; none where it has not been told.
        Yvar: Variances of their noise, if they are known.
        dropped: Of an ask, the numbers of the trials whose observations were discarded for it, of
            each outcome.
        predicted: Of an ask, what the model predicted, if that was read.
    """

    id: int
    round: int | None
    t: float
    nanoseconds: int | None
    asked: float | None
    measured: float | None
    parameters: Mapping[str, Any]
    X: Sequence[float]
    context: Sequence[float] | None
    key: str | None
    state: State
    informative: bool
    information_gain: float | None
    reason: str
    rejection: str
    opened: int
    opened_at: float
    opened_by: str
    ended: int | None
    ended_at: float | None
    Y: Sequence[float]
    Yvar: Sequence[float]
    dropped: Sequence[Sequence[int]]
    predicted: Mapping[str, Any] = MappingProxyType({})

    @property
    def observed_at(self) -> float:
        """Time of its observation."""
        return self.t if self.measured is None else self.measured


def in_order(trials: Sequence[RecordedTrial]) -> Iterator[tuple[RecordedTrial, bool]]:
    """Iterate over the changes of a run in their order: a trial, and whether it ends there."""
    changes = [(each.opened, False, each) for each in trials]
    changes += [(each.ended, True, each) for each in trials if each.ended is not None]
    for _, ends, each in sorted(changes, key=itemgetter(0)):
        yield each, ends
