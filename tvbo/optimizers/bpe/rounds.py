"""What the rounds of batched pure exploration did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from torch import Tensor

from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.optimizers.bpe.exploration_rounds import ExplorationRound

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcome:
    """One that arrived within its round.

    Args:
        X: The action that it is of, ``1 x d``.
        Y: The reward.
        noise: Its noise variance.
    """

    X: Tensor
    Y: float
    noise: float


@dataclass
class CurrentRound:
    """The round in progress.

    Args:
        plan: How long it will be.
        upper_bound: How long an outcome is expected to take at most, in rounds of asking.
        first: Number of its first ask.
        first_trial: Id of its first trial; 0 before there is one.
        arrived: Outcomes that came, by the number of their ask.
    """

    plan: ExplorationRound
    upper_bound: float
    first: int
    first_trial: int = 0
    arrived: dict[int, Outcome] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """In the order of asking: that of arrival changes nothing, not even rounding."""
        return [self.arrived[number] for number in sorted(self.arrived)]

    def finished(
        self,
        num_chosen: int,
        sizes: tuple[float, float],
        bounds: RoundBounds | None,
        max_standard_deviation: float | None,
        threshold: float | None,
    ) -> FinishedRound:
        """Return the record of this round, as :class:`FinishedRound` describes it.

        Args:
            num_chosen: Trials that were asked.
            sizes: Actions left before and after.
            bounds: Those of the outcomes that arrived; None if nothing arrived.
            max_standard_deviation: The largest one of the actions left before, or None.
            threshold: The largest lower bound, or None.
        """
        return FinishedRound(
            number=self.plan.number,
            q=self.plan.q,
            length=self.plan.length,
            upper_bound=self.upper_bound,
            first_trial=self.first_trial,
            num_chosen=num_chosen,
            num_arrived=len(self.arrived),
            size_before=sizes[0],
            size_after=sizes[1],
            multiplier=None if bounds is None else bounds.width.multiplier,
            offset=None if bounds is None else bounds.width.offset,
            max_standard_deviation=max_standard_deviation,
            threshold=threshold,
        )


@dataclass(frozen=True)
class FinishedRound:
    """A round that has ended.

    Args:
        number: From 1.
        q: Trials whose outcomes the round was for.
        length: Trials that were planned for it.
        upper_bound: How long an outcome was expected to take at most, in rounds of asking.
        first_trial: Id of its first trial.
        num_chosen: Trials that were asked.
        num_arrived: Those whose outcome had come by the end.
        size_before: Actions left before: their number, or the share of the box.
        size_after: Actions left after.
        multiplier: Of the standard deviation in the bounds; None if nothing arrived.
        offset: Added to it; None if nothing arrived.
        max_standard_deviation: The largest one of the actions left before, from the outcomes that
            arrived; None if nothing arrived.
        threshold: The largest lower bound: actions whose upper bound is less were removed; None if
            nothing arrived.
    """

    number: int
    q: int
    length: int
    upper_bound: float
    first_trial: int
    num_chosen: int
    num_arrived: int
    size_before: float
    size_after: float
    multiplier: float | None
    offset: float | None
    max_standard_deviation: float | None
    threshold: float | None


@dataclass(frozen=True, eq=False)
class Preview:
    """How the round in progress would end, were it to end now.

    Args:
        record: The round.
        survivors: Actions that would be left, ``m x d``; of a box, some of them.
        bounds: The bounds; None if nothing has arrived.
    """

    record: FinishedRound
    survivors: Tensor
    bounds: RoundBounds | None


def rounds_to_frame(rounds: Sequence[FinishedRound]) -> pd.DataFrame:
    """Return a table with one row for each round."""
    import pandas as pd

    columns = [field.name for field in fields(FinishedRound)]
    return pd.DataFrame([asdict(one) for one in rounds], columns=columns)
