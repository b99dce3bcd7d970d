"""A Cholesky factor to which rows are appended in place."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tvbo.models.resizable_module import ResizableModule

INITIAL_CAPACITY = 64

PARTS = ("X", "residual", "noise", "innovations", "root")

BLOCK = 128
"""Rows of a forward substitution done at once. A triangular solve with a view of a larger buffer
would first copy the view, at many times the cost of the solve; a product with one does not."""


class GrowingCholesky(ResizableModule):
    r"""Observations and the Cholesky factor :math:`L` of their covariance.

    Rows are only ever appended: existing ones never change in place, so that copies can share them.
    ``state_dict`` contains the observations and the factor, so that loading needs no factorization.

    Args:
        width: Number of columns of a row; 0 if it is not known yet.

    Attributes:
        count: Number of observations ``n``.
    """

    _X: Tensor
    _residual: Tensor
    _noise: Tensor
    _innovations: Tensor
    _root: Tensor

    def __init__(self, width: int = 0):
        super().__init__()
        self.count = 0
        shapes = {"X": (0, width), "root": (0, 0)}
        for name in PARTS:
            buffer = torch.empty(shapes.get(name, (0,)), dtype=torch.float64)
            self.register_buffer(f"_{name}", buffer)

    @property
    def X(self) -> Tensor:
        """Rows, ``n x d``."""
        return self._X[: self.count]

    @property
    def residual(self) -> Tensor:
        """Outcomes less the prior mean, ``n``."""
        return self._residual[: self.count]

    @property
    def noise(self) -> Tensor:
        """Noise variances, ``n``."""
        return self._noise[: self.count]

    @property
    def innovations(self) -> Tensor:
        r"""Innovations :math:`a = L^{-1} r`, the whitened residuals, ``n``."""
        return self._innovations[: self.count]

    @property
    def root(self) -> Tensor:
        """``L``, ``n x n``; the upper triangle is undefined."""
        return self._root[: self.count, : self.count]

    def solve(self, B: Tensor, known: Tensor) -> Tensor:
        r"""Return the rows of :math:`L^{-1} B` that follow the known ones.

        Args:
            B: The rows of the right-hand side after the first ``p``, ``(n - p) x M``.
            known: The first ``p`` rows of the solution, ``p x M``.

        Returns:
            The rows of the solution after the first ``p``, ``(n - p) x M``.
        """
        root, first = self.root, len(known)
        solution = known[:0]
        for start in range(first, self.count, BLOCK):
            stop = min(start + BLOCK, self.count)
            part = B[start - first : stop - first] - root[start:stop, :first] @ known
            part = part - root[start:stop, first:start] @ solution
            own = torch.linalg.solve_triangular(root[start:stop, start:stop], part, upper=False)
            solution = torch.cat([solution, own])
        return solution

    def append(
        self, X: Tensor, residual: Tensor, noise: Tensor, cross: Tensor, root: Tensor
    ) -> None:
        """Append ``q`` observations.

        Args:
            X: Rows, ``q x d``.
            residual: Outcomes less the prior mean, ``q``.
            noise: Noise variances, ``q``.
            cross: The first ``n`` columns of the new rows of the factor, ``q x n``.
            root: Their last columns, lower triangular, ``q x q``.
        """
        unexplained = (residual - cross @ self.innovations).unsqueeze(-1)
        innovations = torch.linalg.solve_triangular(root, unexplained, upper=False).squeeze(-1)
        first, last = self.count, self.count + len(X)
        self._reserve(last, X.shape[-1])
        self._X[first:last] = X
        self._residual[first:last] = residual
        self._noise[first:last] = noise
        self._innovations[first:last] = innovations
        self._root[first:last, :first] = cross
        self._root[first:last, first:last] = root
        self.count = last

    def head(self, count: int) -> GrowingCholesky:
        """Return the factor of the first ``count`` observations, independent of later appends.

        It shares memory with this one until it grows.
        """
        new = copy(self)
        new.count = count
        # Buffers without spare capacity, so that an append copies before it writes.
        new._buffers = {f"_{name}": getattr(new, name) for name in PARTS}
        return new

    def get_extra_state(self) -> dict[str, int]:
        """Return the number of observations and the capacity, for ``state_dict``."""
        return {"count": self.count, "capacity": len(self._X)}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        """Restore the saved number of observations and the capacity."""
        self.count = state["count"]
        self._resize(state["capacity"], self._X.shape[-1])

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in PARTS:
            held = getattr(self, name)
            # Without the unused part of the buffers and the upper triangle.
            held = held.tril() if name == "root" else held.clone()
            destination[f"{prefix}_{name}"] = held if keep_vars else held.detach()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        errors: list[str] = args[-1]
        width = self._X.shape[-1]
        keys = {name: f"{prefix}_{name}" for name in PARTS}
        count = state_dict.get(prefix + "_extra_state", {}).get("count", self.count)
        if all(key in state_dict for key in keys.values()):
            shapes = {name: tuple(state_dict[key].shape) for name, key in keys.items()}
            expected: dict[str, tuple[int, ...]] = {name: (count,) for name in PARTS}
            expected |= {"X": (count, width or shapes["X"][-1]), "root": (count, count)}
            if shapes != expected:
                errors.append(f"Expected observations of shapes {expected}. Got {shapes}.")
                return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _reserve(self, needed: int, width: int) -> None:
        """Enlarge the buffers if they cannot hold ``needed`` observations."""
        if needed > len(self._X):
            self._resize(grown_capacity(len(self._X), needed), width)

    def _resize(self, capacity: int, width: int) -> None:
        """Move to new buffers with the given capacity."""
        shapes = {"X": (capacity, width), "root": (capacity, capacity)}
        for name in PARTS:
            held = getattr(self, name)
            new = held.new_empty(shapes.get(name, (capacity,)))
            if self.count > 0:
                new[tuple(slice(size) for size in held.shape)] = held
            setattr(self, f"_{name}", new)


def grown_capacity(capacity: int, needed: int) -> int:
    """Return a capacity for at least ``needed`` rows, larger by a half where it must grow.

    So a loop that appends row by row copies the buffers rarely.

    Args:
        capacity: The present capacity.
        needed: Number of rows to hold.
    """
    return max(INITIAL_CAPACITY, needed, capacity + capacity // 2)
