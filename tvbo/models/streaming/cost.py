"""What a streaming posterior costs, before it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.models.streaming.finite_covariance import MAX_CACHED
from tvbo.models.streaming.room import merged_block, spare_rows
from tvbo.validation import check_forgetting_rate

NUMBER = 8
"""Bytes of one float64."""


@dataclass(frozen=True)
class StreamingCost:
    """Cost of a :class:`tvbo.models.StreamingGP` in its steady state, one observation per round.

    Args:
        rows: Rows held, on average.
        merged: Whether old rows are merged into an ``n x n`` matrix instead of dropped.
        memory: Bytes of all trials together, at the most.
        entries: Choices of all trials together: what mean, variance and a new row have.
        traffic: Bytes of rows read in a round.
        operations: Floating-point operations of a round in large matrix products.
    """

    rows: float
    merged: bool
    memory: float
    entries: int
    traffic: float
    operations: float

    def seconds(self, overhead: float, per_entry: float, bandwidth: float, speed: float) -> float:
        """Seconds of a round: ask and tell.

        Args:
            overhead: Seconds of a round on a tiny set: what the calls cost.
            per_entry: Seconds for each choice and trial, for decay, mean, variance, maximum.
            bandwidth: Bytes per second of memory.
            speed: Operations per second of a matrix product.
        """
        vectors = overhead + per_entry * self.entries
        return vectors + self.traffic / bandwidth + self.operations / speed


def streaming_rows(forgetting_rate: float, tol: float) -> float:
    r"""Rows that weigh, for unit steps: :math:`W = \lceil \ln(tol) / \ln(1 - \varepsilon) \rceil`.

    Infinite for ε = 0, one for ε = 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_forgetting_rate(forgetting_rate)
    if not 0 < tol < 1:
        raise ValueError(f"Expected tol in (0, 1). Got {tol}.")
    if forgetting_rate == 0:
        return math.inf
    if forgetting_rate == 1:
        return 1
    return math.ceil(math.log(tol) / math.log1p(-forgetting_rate))


def streaming_cost(
    num_choices: int,
    forgetting_rate: float,
    *,
    tol: float = 1e-12,
    trials: int = 1,
    max_lateness: float | None = None,
) -> StreamingCost:
    """Bytes and operations from the size of the problem, for unit steps.

    Args:
        num_choices: ``n``.
        forgetting_rate: ε per step.
        tol: As in :class:`tvbo.models.StreamingGP`.
        trials: Independent trials in one tensor, sharing the kernel.
        max_lateness: As there, in steps.

    Raises:
        ValueError: if an argument is out of range.
    """
    if num_choices < 1 or trials < 1:
        raise ValueError(f"Expected num_choices, trials >= 1. Got {num_choices}, {trials}.")
    spare = spare_rows(trials, num_choices) if max_lateness is None else max_lateness
    weighing = max(streaming_rows(forgetting_rate, tol) + (max_lateness or 0), spare)
    merged = weighing > num_choices and spare < weighing
    if merged:
        held, capacity = spare, spare + merged_block(num_choices)
    else:
        # Buffers grow by a half; when full, they are cut back to the rows that weigh.
        held, capacity = weighing, 1.25 * weighing
    rows = 0.5 * (held + capacity)
    numbers = trials * num_choices * (capacity + 4)
    if max_lateness != 0:
        numbers += trials * capacity**2
    if num_choices**2 <= MAX_CACHED:
        numbers += num_choices**2
    entries = trials * num_choices
    operations = 0.0
    if merged:
        numbers += trials * num_choices**2
        operations = 2.0 * trials * num_choices**2
    traffic = NUMBER * rows * entries
    return StreamingCost(rows, merged, NUMBER * numbers, entries, traffic, operations)
