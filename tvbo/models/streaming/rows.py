"""Rows of the observations' innovations in buffers that grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.models.resizable_module import BatchedModule


@dataclass(frozen=True)
class Rows:
    r"""Innovations of ``b`` batch elements, oldest first.

    Args:
        V: Covariances of the innovations with the states of the choices, ``b x k x N``, each row
            as of its time ``made_at``.
        innovation: Values of the innovations :math:`a_j`, ``b x k``.
        made_at: Time :math:`r_j` of the newest observation when the row was made, ``b x k``.
        index: Index of the action observed, ``b x k``.
        time: Event time of the observation, ``b x k``.
        noise: Noise variance of the outcome, ``b x k``.
        root: Covariances of observation ``i`` with innovation ``j <= i``, ``b x k x k``, lower
            triangular: the Cholesky factor of the outcomes' covariance. None if it is not kept.
    """

    V: Tensor
    innovation: Tensor
    made_at: Tensor
    index: Tensor
    time: Tensor
    noise: Tensor
    root: Tensor | None

    @property
    def factor(self) -> Tensor:
        """The Cholesky factor ``root``.

        Raises:
            InputDataError: if it is not kept.
        """
        if self.root is None:
            raise InputDataError(
                "Expected a model that holds what late outcomes need. Got max_lateness=0."
            )
        return self.root


def log_density(rows: Rows, count: int | None = None) -> Tensor:
    """Return the log density of the outcomes of the first rows given all earlier ones, ``b``.

    Raises:
        InputDataError: if the Cholesky factor is not kept.
    """
    scale = rows.factor.diagonal(dim1=-2, dim2=-1)[:, :count].log()
    squared = rows.innovation[:, :count].square() + math.log(2 * math.pi)
    return -(scale + squared / 2).sum(dim=-1)


def lag_since(start: Tensor, time: Tensor) -> Tensor:
    """Return lags from times ``b`` to times ``b x ...``; 0 where the start is minus infinity."""
    return (time - start.reshape(-1, *[1] * (time.ndim - 1))).nan_to_num_(posinf=0.0)


PER_ROW = tuple(field.name for field in fields(Rows) if field.name != "root")


class RowStore(BatchedModule):
    """Holds :class:`Rows`, and appends to them without copying the rows held.

    Attributes:
        count: Number of rows held.
        num_evicted: Number of rows evicted since the last :meth:`clear`.
        shared: Whether the rows held must stay where they are, since a posterior refers to them.

    Args:
        like: ``b x N``, for shape, dtype and device.
        capacity: Number of rows that fit at first.
        with_root: Whether to keep ``root``, which only late observations need.
    """

    V: Tensor
    root: Tensor | None
    shared = False

    def __init__(self, like: Tensor, capacity: int, with_root: bool):
        super().__init__()
        self.count = 0
        self.num_evicted = 0
        b, n = like.shape
        self.register_buffer("V", like.new_empty(b, capacity, n))
        for name in ("innovation", "made_at", "time", "noise"):
            self.register_buffer(name, like.new_empty(b, capacity))
        self.register_buffer("index", like.new_empty(b, capacity, dtype=torch.long))
        self.register_buffer("root", like.new_zeros(b, capacity, capacity) if with_root else None)

    def clear(self) -> None:
        """Discard all rows."""
        if self.shared:
            self.resize(self.count, self.capacity)
        self.count = self.num_evicted = 0

    @property
    def capacity(self) -> int:
        """Number of rows that fit before the buffers must grow."""
        return self.V.shape[1]

    @property
    def held(self) -> Rows:
        """The rows held, as views."""
        k = self.count
        root = None if self.root is None else self.root[:, :k, :k]
        return Rows(**{name: getattr(self, name)[:, :k] for name in PER_ROW}, root=root)

    def append(self, rows: Rows, cross: Tensor) -> None:
        """Append ``q`` rows, which must fit into the capacity.

        Args:
            rows: The new rows.
            cross: The part of ``root`` that relates them to the rows held, ``b x q x k``.
        """
        first, last = self.count, self.count + rows.V.shape[1]
        for name in PER_ROW:
            getattr(self, name)[:, first:last] = getattr(rows, name)
        if self.root is not None:
            self.root[:, first:last, :first] = cross
            self.root[:, first:last, first:last] = rows.factor
            self.root[:, first:last, last:] = 0.0
        self.count = last

    def resize(self, first: int, capacity: int) -> None:
        """Discard the rows before ``first``, and set the capacity to ``capacity`` rows."""
        kept = self.count - first
        self.num_evicted += first
        if capacity == self.capacity and first > 0 and not self.shared:
            self._shift(first, kept)
            return
        self.shared = False
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
        """Move the rows from ``first`` on to the front, in place: new memory is slow."""
        for name in PER_ROW:
            buffer = getattr(self, name)
            # At most `first` rows at once, so that source and target do not overlap.
            for start in range(0, kept, first):
                stop = min(start + first, kept)
                buffer[:, start:stop] = buffer[:, start + first : stop + first]
        if self.root is not None:
            kept_root = self.root[:, first : self.count, first : self.count].clone()
            self.root[:, :kept, :kept] = kept_root
            self.root[:, :kept, kept:] = 0.0
        self.count = kept

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # The unused part of the buffers is not saved.
        for name, held in vars(self.held).items():
            if held is not None:
                destination[prefix + name] = held if keep_vars else held.detach().clone()

    def get_extra_state(self) -> dict[str, int]:
        """Return the numbers of rows held and evicted and the capacity, for ``state_dict``."""
        return {"count": self.count, "num_evicted": self.num_evicted, "capacity": self.capacity}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        """Restore saved numbers of rows and the capacity, on which evictions depend."""
        self.count, num_evicted = state["count"], state["num_evicted"]
        self.resize(0, state["capacity"])
        self.num_evicted = num_evicted
