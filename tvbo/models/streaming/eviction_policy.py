"""How many rows are held, and which are merged or dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.models.streaming.evicted_summary import EvictedSummary
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.rows import RowStore

INITIAL_CAPACITY = 64

RESERVE_ENTRIES = 2**20
"""Rows with weight of up to this many entries in all are not merged, so that late observations can
be taken in: reading them costs less than the rest of a round."""

RESERVE_ROWS = (256, 2048)
"""Minimum and maximum number of such rows. The minimum is held whatever the weight."""

MIN_EVICTION = 8
"""Rows are evicted only if they are at least one part in this many of the capacity, since each
eviction copies the other rows."""


@dataclass(frozen=True)
class EvictionPolicy:
    """Decides, when the buffer is full, whether old rows are evicted or the buffer grows.

    A row whose weight is below ``tol`` is dropped. Where more rows have weight than there are
    choices, it is cheaper to merge old ones into a matrix of all states, which loses nothing.

    Args:
        tol: A row as of time ``r`` is dropped once its weight, ``(1 - ε)^(t - r)`` where the drift
            has a rate, is at most this.
        max_lateness: Lateness, in units of time, that the rows held must allow for; None allows for
            observations later than at most some hundreds of others.
        max_rows: Maximum number of rows held, without such a matrix; None for no limit.
    """

    tol: float
    max_lateness: float | None
    max_rows: int | None

    @property
    def initial_capacity(self) -> int:
        """Capacity of a new buffer."""
        return INITIAL_CAPACITY if self.max_rows is None else min(INITIAL_CAPACITY, self.max_rows)

    def num_to_evict(self, store: RowStore, num_new: int) -> int:
        """Return how many of the oldest rows ``max_rows`` forces out, whatever their weight."""
        if self.max_rows is None:
            return 0
        limit = max(self.max_rows, num_new)
        excess = store.count + num_new - limit
        if excess <= 0:
            return 0
        # At least an eighth, or each observation would copy all rows.
        return min(store.count, max(excess, limit // MIN_EVICTION))

    def check_earliest(self, store: RowStore, earliest: Tensor, time: Tensor) -> None:
        """Raise if a time lies before the rows held, as they will be after ``max_rows`` is met.

        Args:
            store: The rows held.
            earliest: Earliest event time that the rows allow for now, ``b``.
            time: Times of the next observations, ``b x q``.

        Raises:
            InputDataError: if one is earlier.
        """
        num_evicted = self.num_to_evict(store, time.shape[1])
        if num_evicted > 0:
            earliest = torch.maximum(earliest, store.held.made_at[:, num_evicted - 1])
        early = time < earliest.unsqueeze(-1)
        if early.any():
            first = tuple(torch.nonzero(early)[0].tolist())
            raise InputDataError(
                f"Expected times >= {earliest[first[0]].item():g}: what was observed before is "
                f"held in sum only (max_lateness={self.max_lateness}, max_rows={self.max_rows}). "
                f"Got an observation at t={time[first].item():g}."
            )

    def make_room(
        self,
        prior: MarkovPrior,
        store: RowStore,
        evicted: EvictedSummary,
        now: Tensor,
        new_times: Tensor,
    ) -> Tensor | None:
        """Evict rows or enlarge the buffer, so that new observations fit.

        Args:
            prior: The prior, which decides what a row weighs.
            store: The rows held.
            evicted: The summary that takes over evicted rows.
            now: Time of the newest observation, ``b``.
            new_times: Times of the next observations, ``b x q``.

        Returns:
            What dropped rows explained, as of the new time of ``evicted``, ``b x R``; None if none
            was dropped.
        """
        merging = evicted.merged is not None
        unneeded = self._num_unneeded(
            store, now, new_times, reserve_rows(len(store.V), store.V.shape[-1])
        )
        count = unneeded
        if not merging:
            # What comes so late that it needs rows without weight says nothing of the present.
            least = self._num_unneeded(store, now, new_times, RESERVE_ROWS[0])
            count = min(least, self._num_negligible(prior, store, now))
        capacity = store.capacity
        forced = self.num_to_evict(store, new_times.shape[1])
        count = max(count, forced)
        many = self.max_rows is None and store.count >= prior.num_choices
        if many and not merging and unneeded > count:
            merging, count = True, unneeded
        if forced or count * MIN_EVICTION >= capacity:
            lost = evicted.absorb(prior, store.held, count, merge=merging)
        else:
            count, lost = 0, None
        kept = store.count - count
        if merging:
            capacity = kept + merge_block_rows(prior.num_choices)
        if kept + new_times.shape[1] > capacity:
            capacity = max(capacity + capacity // 2, kept + new_times.shape[1])
        if self.max_rows is not None:
            capacity = min(capacity, max(self.max_rows, new_times.shape[1]))
        store.resize(count, capacity)
        return lost

    def _num_unneeded(self, store: RowStore, now: Tensor, new_times: Tensor, reserve: int) -> int:
        """Return how many of the oldest rows no allowed late observation needs.

        Where lateness has no stated limit, that is of those before the last ``reserve`` rows.
        """
        earliest = new_times.amin(dim=-1)
        count = store.count
        if self.max_lateness is None:
            count = max(0, store.count - reserve)
        else:
            earliest = torch.minimum(earliest, now - self.max_lateness)
        return min(count, _num_leading(store.held.made_at <= earliest.unsqueeze(-1)))

    def _num_negligible(self, prior: MarkovPrior, store: RowStore, now: Tensor) -> int:
        """Return how many of the oldest rows have a weight of at most ``tol``."""
        now = now - (self.max_lateness or 0.0)
        age = (now.unsqueeze(-1) - store.held.made_at).clamp_min(0.0)
        return _num_leading(prior.weight(age) <= self.tol)


def reserve_rows(batch_size: int, num_choices: int) -> int:
    """Return the number of rows that are not merged where lateness has no stated limit."""
    least, most = RESERVE_ROWS
    for rows in range(most, least, -1):
        if batch_size * rows * (num_choices + rows) <= RESERVE_ENTRIES:
            return rows
    return least


def merge_block_rows(num_choices: int) -> int:
    """Return the number of rows merged at once, so many that one matrix product is efficient."""
    return max(INITIAL_CAPACITY, num_choices // 4)


def _num_leading(true: Tensor) -> int:
    """Return how many leading columns of ``b x k`` are true in every row."""
    return int(true.all(dim=0).to(torch.uint8).cumprod(dim=0).sum())
