"""Distinct rows, and the position of a row among them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

from tvbo.spaces.observations import check_coordinates, check_finite, check_last_dimension
from tvbo.spaces.parameters import SINGLE_PRECISION
from tvbo.values import as_numbers

SEARCH_CHUNK = 256
"""Number of inexact rows compared with the whole set at once."""

MAX_LISTED = 5_000
"""Number of rows up to which one is looked up in a dictionary of all."""

Array = NDArray[np.float64]

GOLDEN_RATIO = 0.5 * (5**0.5 - 1)


class RowIndex(Module):
    """``n`` distinct rows, and the position of a row among them.

    Args:
        choices: ``n x d``; kept as a float64 copy on its device.
        name: Name of the rows in errors.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite or beyond 1e100, or the rows contain duplicates.
    """

    choices: Tensor

    def __init__(self, choices: Tensor, name: str = "choices"):
        super().__init__()
        self.name = name
        choices = as_numbers(name, choices)
        if choices.ndim != 2 or 0 in choices.shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape n x d. Got {name}.shape={tuple(choices.shape)}."
            )
        check_coordinates(name, choices)
        distinct, count = torch.unique(choices, dim=0, return_counts=True)
        if len(distinct) < len(choices):
            raise InputDataError(
                f"Expected {name} that differ. Got {distinct[count > 1][0].tolist()} "
                f"{int(count.max())} times."
            )
        self.register_buffer("choices", choices)
        # Rows are looked up by a sorted key, without PyTorch, which takes longer for one.
        rows = choices.numpy(force=True)
        keys = self._key(rows)
        order = keys.argsort(kind="stable")
        self._sorted = rows, keys[order], order

    def __len__(self) -> int:
        return len(self.choices)

    @property
    def dim(self) -> int:
        """Number of columns ``d``."""
        return self.choices.shape[-1]

    def index(self, X: Tensor) -> Tensor:
        """Return the position of each row among the choices, comparing to single precision.

        Args:
            X: Rows, ``... x d``.

        Returns:
            Positions, ``...``.

        Raises:
            BotorchTensorDimensionError: if ``X`` has the wrong width.
            InputDataError: if a row is not among the choices.
        """
        check_last_dimension("X", X, self.dim)
        places = self.places(X.detach().to(torch.float64).numpy(force=True))
        return torch.from_numpy(places).to(X.device)

    def places(self, rows: Array) -> NDArray[np.int64]:
        """Return the same in NumPy, without a check of the width."""
        shape, (choices, keys, order) = rows.shape[:-1], self._sorted
        if rows.size == choices.size and all(
            (rows[..., i].ravel() == choices[:, i]).all() for i in range(self.dim)
        ):
            # All in their order, as in a search among them.
            return np.arange(len(self)).reshape(shape)
        rows = rows.reshape(-1, rows.shape[-1])
        if len(rows) == 1 and len(choices) <= MAX_LISTED:
            found = self._places.get(tuple(rows[0].tolist()))
            if found is not None:
                return np.array([found]).reshape(shape)
        position = np.searchsorted(keys, self._key(rows)).clip(max=len(self) - 1)
        index: NDArray[np.int64] = order[position]
        inexact = (choices[index] != rows).any(axis=-1)
        if inexact.any():
            # Rounding may place a key on either side of its equal.
            index[inexact] = order[(position[inexact] - 1).clip(min=0)]
            inexact = (choices[index] != rows).any(axis=-1)
        if inexact.any():
            parts = torch.from_numpy(rows[inexact]).split(SEARCH_CHUNK)
            device = self.choices.device
            index[inexact] = torch.cat([self._search(part.to(device)) for part in parts]).cpu()
        return index.reshape(shape)

    @cached_property
    def _places(self) -> dict[tuple[float, ...], int]:
        return {tuple(row): i for i, row in enumerate(self._sorted[0].tolist())}

    def _key(self, rows: Array) -> Array:
        # A direction on which the points of a grid do not coincide.
        key: Array = (rows * (0.5 + np.arange(1, self.dim + 1) * GOLDEN_RATIO % 1)).sum(axis=-1)
        return key

    def _search(self, rows: Tensor) -> Tensor:
        check_finite("X", rows)
        distance = (rows.unsqueeze(1) - self.choices).abs()
        near = (distance <= SINGLE_PRECISION * self.choices.abs()).all(dim=-1)
        known = near.any(dim=-1)
        if not known.all():
            raise InputDataError(
                f"Expected rows that are among the {len(self)} {self.name}. "
                f"Got {rows[~known][0].tolist()}."
            )
        return distance.sum(dim=-1).where(near, torch.inf).argmin(dim=-1)


def action_context_rows(choices: Tensor, contexts: Tensor) -> Tensor:
    """Return all pairs of action and context, ``n m x (d + c)``, grouped by action.

    Args:
        choices: ``n x d``.
        contexts: ``m x c``.

    Raises:
        BotorchTensorDimensionError: if one of them is not a matrix.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """
    choices, contexts = RowIndex(choices).choices, RowIndex(contexts, "contexts").choices
    actions = choices.repeat_interleave(len(contexts), dim=0)
    return torch.cat([actions, contexts.repeat(len(choices), 1)], dim=-1)
