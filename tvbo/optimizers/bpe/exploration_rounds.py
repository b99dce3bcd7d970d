"""Lengths of the rounds of batched pure exploration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.values import check_count, check_not_negative


@dataclass(frozen=True)
class ExplorationRound:
    """The plan of a round.

    Args:
        number: Number of the round, from 1.
        q: Number of trials whose outcomes the round needs.
        length: Number of trials: ``q``, and those asked while outcomes are pending.
    """

    number: int
    q: int
    length: int


def next_round(
    horizon: int, upper_bound: float, previous: ExplorationRound | None, remaining: int
) -> ExplorationRound:
    r"""Return the plan of the next round (Vakili et al., 2023, Algorithm 1).

    .. math:: q_r = \lceil\sqrt{T q_{r-1}}\,\rceil, \quad q_0 = 1, \qquad
        t_r = \lceil q_r + u_T \rceil

    truncated to the rest of the horizon. The text of Section 5 omits the rounding of :math:`q_r`,
    the algorithm has it. With :math:`u_T = 0` these are the batches of BPE (Li,
    Scarlett, 2022).

    Args:
        horizon: T.
        upper_bound: :math:`u_T`, an upper bound on the delay, in rounds.
        previous: The previous round; None for the first one.
        remaining: Trials left until T.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, remaining=remaining)
    check_not_negative(upper_bound=upper_bound)
    product = int(horizon) * (1 if previous is None else previous.q)
    q = math.isqrt(product - 1) + 1
    number = 1 if previous is None else previous.number + 1
    return ExplorationRound(number, q, min(q + math.ceil(upper_bound), int(remaining)))


def exploration_rounds(horizon: int, upper_bound: float) -> tuple[ExplorationRound, ...]:
    """Return the plans of all rounds up to the horizon.

    Args:
        horizon: T.
        upper_bound: :math:`u_T`, an upper bound on the delay, in rounds.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    rounds: list[ExplorationRound] = []
    remaining = int(horizon)
    while remaining > 0:
        previous = rounds[-1] if rounds else None
        rounds.append(next_round(horizon, upper_bound, previous, remaining))
        remaining -= rounds[-1].length
    return tuple(rounds)
