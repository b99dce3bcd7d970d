"""How long the rounds of batched pure exploration are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.theory.arguments import check_count, check_not_negative


@dataclass(frozen=True)
class ExplorationRound:
    """The plan of a round.

    Args:
        number: From 1.
        q: Trials whose outcomes the round is for.
        length: Number of trials: those, and as many as are asked while outcomes are awaited.
    """

    number: int
    q: int
    length: int


def next_round(
    horizon: int, upper_bound: float, previous: ExplorationRound | None, remaining: int
) -> ExplorationRound:
    r"""The round after another (Vakili et al., 2023, Algorithm 1).

    .. math:: q_r = \lceil\sqrt{T q_{r-1}}\,\rceil, \quad q_0 = 1, \qquad
        t_r = \lceil q_r + u_T \rceil

    and no longer than what remains of T. The text of Section 5 leaves out the rounding of
    :math:`q_r`; the algorithm's is used. With :math:`u_T = 0` these are the batches of BPE (Li,
    Scarlett, 2022).

    Args:
        horizon: T.
        upper_bound: :math:`u_T`, in rounds: how long an outcome may take.
        previous: The round before; None for the first one.
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
    """All rounds up to the horizon: their number is known in advance.

    Args:
        horizon: T.
        upper_bound: :math:`u_T`, in rounds.

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
