"""How many rows are held, and where the others go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tvbo.models.streaming.base import Base
from tvbo.models.streaming.rows import RowStore

FIRST_CAPACITY = 64

SPARE_ENTRIES = 2**20
"""Rows with so many entries in all are held whatever they weigh, for late observations: to read
them costs less than the rest of a round."""

SPARE_ROWS = (256, 2048)
"""Least and most of such rows."""

WORTHWHILE = 8
"""Rows go when they are this part of the room, at least: each time, the others are copied."""


@dataclass(frozen=True)
class Room:
    """Decides, when the rows fill their buffer, whether old ones go or the buffer grows.

    A row that weighs less than ``tol`` is dropped. Where more rows weigh than there are choices,
    it is cheaper to merge old ones into an ``n x n`` matrix, which loses nothing.

    Args:
        tol: A row made at ``r`` is dropped once ``(1 - ε)^(t - r) <= tol``.
        max_lateness: Time up to which late observations are provided for; None provides for
            those that are later than no more than some hundreds of others.
        max_rows: Never hold more rows than this, nor an ``n x n`` matrix; None for no limit.
    """

    tol: float
    max_lateness: float | None
    max_rows: int | None

    @property
    def first_capacity(self) -> int:
        """Rows to make room for at first."""
        return FIRST_CAPACITY if self.max_rows is None else min(FIRST_CAPACITY, self.max_rows)

    def is_needed(self, store: RowStore, num_coming: int) -> bool:
        """Whether so many more rows do not fit."""
        return store.count + num_coming > store.capacity

    def forced_out(self, store: RowStore, num_coming: int) -> int:
        """How many of the oldest rows must go, whatever they weigh, for ``max_rows``."""
        if self.max_rows is None:
            return 0
        limit = max(self.max_rows, num_coming)
        excess = store.count + num_coming - limit
        if excess <= 0:
            return 0
        # At least an eighth, or each observation would copy all rows.
        return min(store.count, max(excess, limit // WORTHWHILE))

    def make(self, store: RowStore, base: Base, now: Tensor, coming: Tensor) -> Tensor | None:
        """Make room for ``coming``, the times ``b x q`` of the next observations.

        Returns:
            The variance reduction that went with dropped rows, as of the new time of the base,
            ``b x n``; None if none were dropped.
        """
        free = self._free(store, now, coming)
        merging = base.shared is not None
        gone = free if merging else min(free, self._forgotten(store, base, now))
        capacity = store.capacity
        forced = self.forced_out(store, coming.shape[1])
        gone = max(gone, forced)
        many = self.max_rows is None and store.count >= store.V.shape[-1]
        if many and not merging and free > gone:
            merging, gone = True, free
        if forced or gone * WORTHWHILE >= capacity:
            rows = store.held
            oldest = (rows.V[:, :gone], rows.gains[:, :gone], rows.made_at[:, :gone])
            lost = base.absorb(*oldest, merge=merging)
        else:
            gone, lost = 0, None
        kept = store.count - gone
        if merging:
            capacity = kept + merged_block(store.V.shape[-1])
        if kept + coming.shape[1] > capacity:
            capacity = max(capacity + capacity // 2, kept + coming.shape[1])
        if self.max_rows is not None:
            capacity = min(capacity, max(self.max_rows, coming.shape[1]))
        store.resize(gone, capacity)
        return lost

    def _free(self, store: RowStore, now: Tensor, coming: Tensor) -> int:
        """How many of the oldest rows no late observation will ask for."""
        reach = coming.amin(dim=-1)
        free = store.count
        if self.max_lateness is None:
            free = max(0, store.count - spare_rows(len(store.V), store.V.shape[-1]))
        else:
            reach = torch.minimum(reach, now - self.max_lateness)
        return min(free, _all_first(store.held.made_at <= reach.unsqueeze(-1)))

    def _forgotten(self, store: RowStore, base: Base, now: Tensor) -> int:
        """How many of the oldest rows weigh no more than the tolerance."""
        now = now - (self.max_lateness or 0.0)
        age = (now.unsqueeze(-1) - store.held.made_at).clamp_min(0.0)
        return _all_first(base.decay(age).square() <= self.tol)


def spare_rows(trials: int, num_choices: int) -> int:
    """Rows that are held whatever they weigh, where lateness has no stated limit."""
    least, most = SPARE_ROWS
    for rows in range(most, least, -1):
        if trials * rows * (num_choices + rows) <= SPARE_ENTRIES:
            return rows
    return least


def merged_block(num_choices: int) -> int:
    """Rows that are merged at once: enough to make a matrix product worth its start."""
    return max(FIRST_CAPACITY, num_choices // 4)


def _all_first(true: Tensor) -> int:
    """How many of the first columns of ``b x k`` are true in every row."""
    return int(true.all(dim=0).to(torch.uint8).cumprod(dim=0).sum())
