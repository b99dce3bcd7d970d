"""Distinct rows, and the position of a row among them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor
from torch.nn import Module

from tvbo.spaces.observations import check_coordinates, check_finite, check_last_dimension
from tvbo.spaces.parameters import SINGLE_PRECISION
from tvbo.values import as_numbers

Array = NDArray[np.float64]


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
        # Rows are looked up without PyTorch, which takes longer for one.
        self._rows: Array = choices.numpy(force=True)

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
        shape = rows.shape[:-1]
        if rows.size == self._rows.size and all(
            (rows[..., i].ravel() == self._rows[:, i]).all() for i in range(self.dim)
        ):
            # All in their order, as in a search among them.
            return np.arange(len(self)).reshape(shape)
        rows = rows.reshape(-1, self.dim)
        index = np.array([self._places.get(tuple(row), -1) for row in rows.tolist()], dtype=int)
        inexact = index < 0
        if inexact.any():
            index[inexact] = self._nearest(rows[inexact])
        return index.reshape(shape)

    @cached_property
    def _places(self) -> dict[tuple[float, ...], int]:
        return {tuple(row): i for i, row in enumerate(self._rows.tolist())}

    @cached_property
    def _tree(self) -> tuple[KDTree, Array]:
        """Return the choices in a tree, columns scaled by their largest value, and the scales."""
        scale = abs(self._rows).max(axis=0)
        scale[scale == 0] = 1.0
        return KDTree(self._rows / scale), scale

    def _nearest(self, rows: Array) -> NDArray[np.int64]:
        """Return the positions of rows that were rounded to single precision."""
        check_finite("X", torch.from_numpy(rows))
        tree, scale = self._tree
        index: NDArray[np.int64] = tree.query(rows / scale, p=1)[1]
        choices = self._rows[index]
        unknown = (abs(rows - choices) > SINGLE_PRECISION * abs(choices)).any(axis=-1)
        if unknown.any():
            raise InputDataError(
                f"Expected rows that are among the {len(self)} {self.name}. "
                f"Got {rows[unknown][0].tolist()}."
            )
        return index


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
