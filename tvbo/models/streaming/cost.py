"""Memory and operations of a streaming posterior, estimated before it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.models.streaming.eviction_policy import RESERVE_ROWS, merge_block_rows, reserve_rows
from tvbo.models.streaming.finite_prior import MAX_CACHED

NUMBER = 8
"""Bytes of one float64."""


@dataclass(frozen=True)
class StreamingCost:
    """Cost of a :class:`tvbo.models.StreamingGP` in its steady state, one observation per round.

    Args:
        rows: Rows held, on average.
        merged: Whether old rows are merged into an ``n x n`` matrix instead of dropped.
        memory: Bytes of the whole batch, at most.
        entries: Choices times batch elements: the size of mean, variance and a new row.
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
        """Return the seconds of a round: ask and tell.

        Args:
            overhead: Seconds of a round on a tiny set, which are those of the calls.
            per_entry: Seconds for each choice and batch element, for decay, mean, variance and
                maximum.
            bandwidth: Bytes per second of memory.
            speed: Operations per second of a matrix product.
        """
        vectors = overhead + per_entry * self.entries
        return vectors + self.traffic / bandwidth + self.operations / speed


def streaming_rows(forgetting_rate: float, tol: float) -> float:
    r"""Return the number of rows with weight for unit steps; infinite for ε = 0, one for ε = 1.

    .. math:: W = \lceil \ln(tol) / \ln(1 - \varepsilon) \rceil

    Args:
        forgetting_rate: ε per step.
        tol: Weight at which a row is dropped.

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
    batch_size: int = 1,
    max_lateness: float | None = None,
) -> StreamingCost:
    """Estimate bytes and operations from the size of the problem, for unit steps.

    Args:
        num_choices: ``n``.
        forgetting_rate: ε per step.
        tol: Weight at which a row is dropped.
        batch_size: Number of independent batch elements, which share the kernel.
        max_lateness: Lateness of observations, in steps, that the rows held must allow for; None
            allows for observations later than at most some hundreds of others.

    Raises:
        ValueError: if an argument is out of range.
    """
    if num_choices < 1 or batch_size < 1:
        raise ValueError(f"Expected num_choices, batch_size >= 1. Got {num_choices}, {batch_size}.")
    reserve = reserve_rows(batch_size, num_choices) if max_lateness is None else max_lateness
    needed = streaming_rows(forgetting_rate, tol) + (max_lateness or 0)
    merged = needed > max(num_choices, reserve)
    if merged:
        held, capacity = reserve, reserve + merge_block_rows(num_choices)
    else:
        # Buffers grow by a half; when full, they are cut back to the rows with weight.
        held = max(needed, RESERVE_ROWS[0]) if max_lateness is None else needed
        capacity = 1.25 * held
    rows = 0.5 * (held + capacity)
    numbers = batch_size * num_choices * (capacity + 4)
    if max_lateness != 0:
        numbers += batch_size * capacity**2
    if num_choices**2 <= MAX_CACHED:
        numbers += num_choices**2
    entries = batch_size * num_choices
    operations = 0.0
    if merged:
        numbers += batch_size * num_choices**2
        operations = 2.0 * batch_size * num_choices**2
    traffic = NUMBER * rows * entries
    return StreamingCost(rows, merged, NUMBER * numbers, entries, traffic, operations)
