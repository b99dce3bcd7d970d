"""A Cholesky factor that grows by rows, in place."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from tvbo.models.streaming.state import ResizableModule

FIRST_CAPACITY = 64

PARTS = ("X", "residual", "noise", "gains", "root")

BLOCK = 128
"""Rows substituted at once. A triangular solve with a view of a larger buffer would first copy the
view, at many times the cost of the solve; products with a view copy nothing."""


class Factor(ResizableModule):
    r"""Observations and the Cholesky factor :math:`L` of their covariance.

    Rows are only ever appended: what is held never changes in place, and a copy shares it.
    ``state_dict`` holds the observations and the factor, so that loading them factorizes nothing.

    Attributes:
        count: Number of observations ``n``.
    """

    def __init__(self, width: int = 0):
        super().__init__()
        self.count = 0
        shapes = {"X": (0, width), "residual": (0,), "noise": (0,), "gains": (0,), "root": (0, 0)}
        for name, shape in shapes.items():
            buffer = torch.empty(shape, dtype=torch.float64)
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
    def gains(self) -> Tensor:
        r"""Innovations :math:`a = L^{-1} r` of the residuals, ``n``."""
        return self._gains[: self.count]

    @property
    def root(self) -> Tensor:
        """``L``, ``n x n``; above the diagonal stands anything."""
        return self._root[: self.count, : self.count]

    def solve(self, B: Tensor, known: Tensor) -> Tensor:
        r""":math:`L^{-1} B`, of which the first rows are known.

        Args:
            B: The rows of the right-hand side that have no solution yet, ``(n - p) x M``.
            known: The solution's first ``p`` rows, ``p x M``.

        Returns:
            The other rows, ``(n - p) x M``.
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
        """Add ``q`` observations.

        Args:
            X: Rows, ``q x d``.
            residual: Outcomes less the prior mean, ``q``.
            noise: Noise variances, ``q``.
            cross: The rows of the factor below what is held, ``q x n``.
            root: Their last columns, lower triangular, ``q x q``.
        """
        surprise = (residual - cross @ self.gains).unsqueeze(-1)
        gains = torch.linalg.solve_triangular(root, surprise, upper=False).squeeze(-1)
        first, last = self.count, self.count + len(X)
        self._make_room(last, X.shape[-1])
        self._X[first:last] = X
        self._residual[first:last] = residual
        self._noise[first:last] = noise
        self._gains[first:last] = gains
        self._root[first:last, :first] = cross
        self._root[first:last, first:last] = root
        self.count = last

    def head(self, count: int) -> Factor:
        """The factor of the first observations, which goes its own way from here on.

        Nothing is copied until it grows.
        """
        new = copy(self)
        new.count = count
        # Without room to spare, it moves before it writes.
        new._buffers = {f"_{name}": getattr(new, name) for name in PARTS}
        return new

    def get_extra_state(self) -> dict[str, int]:
        """The number of observations and the room for them, for ``state_dict``."""
        return {"count": self.count, "capacity": len(self._X)}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        """Restore a saved number of observations, and as much room."""
        self.count = state["count"]
        self._resize(state["capacity"], self._X.shape[-1])

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in PARTS:
            held = getattr(self, name)
            # Neither spare room nor what stands above the diagonal is worth saving.
            held = held.tril() if name == "root" else held.clone()
            destination[f"{prefix}_{name}"] = held if keep_vars else held.detach()

    def _load_from_state_dict(
        self, state_dict, prefix, metadata, strict, missing, unexpected, errors
    ) -> None:
        width = self._X.shape[-1]
        saved = {name: state_dict.get(f"{prefix}_{name}") for name in PARTS}
        count = state_dict.get(prefix + "_extra_state", {}).get("count", self.count)
        if all(value is not None for value in saved.values()):
            shapes = {name: tuple(value.shape) for name, value in saved.items()}
            expected = {name: (count,) for name in PARTS}
            expected |= {"X": (count, width or shapes["X"][-1]), "root": (count, count)}
            if shapes != expected:
                errors.append(f"Expected observations of shapes {expected}. Got {shapes}.")
                return
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unexpected, errors
        )

    def _make_room(self, needed: int, width: int) -> None:
        if needed > len(self._X):
            self._resize(enough_room(len(self._X), needed), width)

    def _resize(self, capacity: int, width: int) -> None:
        """Move to memory of its own with room for ``capacity`` observations."""
        shapes = {"X": (capacity, width), "root": (capacity, capacity)}
        for name in PARTS:
            held = getattr(self, name)
            new = held.new_empty(shapes.get(name, (capacity,)))
            if self.count > 0:
                new[tuple(slice(size) for size in held.shape)] = held
            setattr(self, f"_{name}", new)


def enough_room(capacity: int, needed: int) -> int:
    """Room for at least so many rows, and half as much again: a loop seldom copies what it has."""
    return max(FIRST_CAPACITY, needed, capacity + capacity // 2)
