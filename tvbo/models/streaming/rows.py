"""Rows of innovations in growing buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tvbo.models.streaming.state import GrowingModule


@dataclass(frozen=True)
class Rows:
    r"""Innovations of ``b`` trials, oldest first.

    Args:
        V: Covariances of the innovations with the choices, ``b x k x n``, each row as of its time
            ``made_at``.
        gains: The innovations' values :math:`a_j`, ``b x k``.
        made_at: Time :math:`r_j` of the newest observation when the row was made, ``b x k``.
        index: Position of the action observed, ``b x k``.
        time: Event time of the observation, ``b x k``.
        noise: Noise variance of its outcome, ``b x k``.
        root: Covariances of observation ``i`` with innovation ``j <= i``, ``b x k x k``, lower
            triangular: a Cholesky factor of the observations' covariance. None if not kept.
    """

    V: Tensor
    gains: Tensor
    made_at: Tensor
    index: Tensor
    time: Tensor
    noise: Tensor
    root: Tensor | None


PER_ROW = tuple(field.name for field in fields(Rows) if field.name != "root")


class RowStore(GrowingModule):
    """Keeps :class:`Rows`; appends without a copy of what it holds.

    Attributes:
        count: Rows held.
        gone: Rows that were held before, since the last :meth:`clear`.

    Args:
        like: ``b x n``; gives shape, dtype and device.
        capacity: Rows to make room for at first.
        with_root: Whether to keep ``root``, which only late observations need.
    """

    def __init__(self, like: Tensor, capacity: int, with_root: bool):
        super().__init__()
        self.count = 0
        self.gone = 0
        b, n = like.shape
        self.register_buffer("V", like.new_empty(b, capacity, n))
        for name in ("gains", "made_at", "time", "noise"):
            self.register_buffer(name, like.new_empty(b, capacity))
        self.register_buffer("index", like.new_empty(b, capacity, dtype=torch.long))
        root = like.new_zeros(b, capacity, capacity) if with_root else None
        self.register_buffer("root", root)

    def clear(self) -> None:
        """Forget every row."""
        self.count = self.gone = 0

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return self.V.shape[1]

    @property
    def held(self) -> Rows:
        """Views of the rows held."""
        k = self.count
        root = None if self.root is None else self.root[:, :k, :k]
        return Rows(**{name: getattr(self, name)[:, :k] for name in PER_ROW}, root=root)

    def append(self, rows: Rows, cross: Tensor) -> None:
        """Add ``q`` rows, for which there must be room.

        Args:
            rows: The rows.
            cross: ``b x q x k``, the part of ``root`` that relates them to the rows held.
        """
        first, last = self.count, self.count + rows.V.shape[1]
        for name in PER_ROW:
            getattr(self, name)[:, first:last] = getattr(rows, name)
        if self.root is not None:
            self.root[:, first:last, :first] = cross
            self.root[:, first:last, first:last] = rows.root
            self.root[:, first:last, last:] = 0.0
        self.count = last

    def resize(self, first: int, capacity: int) -> None:
        """Forget the rows before ``first``, and make room for ``capacity`` of them in all."""
        kept = self.count - first
        self.gone += first
        if capacity == self.capacity and first > 0:
            self._shift(first, kept)
            return
        for name in PER_ROW:
            old = getattr(self, name)
            new = old.new_empty(len(old), capacity, *old.shape[2:])
            new[:, :kept] = old[:, first : self.count]
            setattr(self, name, new)
        if self.root is not None:
            new = self.root.new_zeros(len(self.root), capacity, capacity)
            new[:, :kept, :kept] = self.root[:, first : self.count, first : self.count]
            self.root = new
        self.count = kept

    def _shift(self, first: int, kept: int) -> None:
        """Move the rows from ``first`` on to the front, where they are: fresh memory is slow."""
        for name in PER_ROW:
            buffer = getattr(self, name)
            # As many rows at once as are free, so that source and target never overlap.
            for start in range(0, kept, first):
                stop = min(start + first, kept)
                buffer[:, start:stop] = buffer[:, start + first : stop + first]
        if self.root is not None:
            kept_root = self.root[:, first : self.count, first : self.count].clone()
            self.root[:, :kept, :kept] = kept_root
            self.root[:, :kept, kept:] = 0.0
        self.count = kept

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Room that no row fills yet is not worth saving.
        for name, held in vars(self.held).items():
            if held is not None:
                destination[prefix + name] = held if keep_vars else held.detach().clone()

    def get_extra_state(self) -> dict[str, int]:
        """The numbers of rows held and gone and the room for them, for ``state_dict``."""
        return {"count": self.count, "gone": self.gone, "capacity": self.capacity}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        """Restore saved numbers of rows, and as much room: it decides when old rows go."""
        self.count, gone = state["count"], state["gone"]
        self.resize(0, state["capacity"])
        self.gone = gone
