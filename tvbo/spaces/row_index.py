"""Distinct rows, and the position of a row among them."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.nn import Module

from tvbo.spaces.observations import check_coordinates, check_finite, check_last_dimension
from tvbo.spaces.parameters import SINGLE_PRECISION
from tvbo.values import as_numbers

SEARCH_CHUNK = 256
"""Number of inexact rows compared with the whole set at once."""

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
    _direction: Tensor
    _keys: Tensor
    _order: Tensor

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
        # Rows are looked up by a sorted key: their projection onto a direction on which the points
        # of a grid do not coincide.
        steps = torch.arange(1, self.dim + 1, dtype=torch.float64, device=choices.device)
        self.register_buffer("_direction", 0.5 + (steps * GOLDEN_RATIO).frac(), persistent=False)
        keys, order = self._key(choices).sort()
        self.register_buffer("_keys", keys, persistent=False)
        self.register_buffer("_order", order, persistent=False)

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
        rows = X.reshape(-1, self.dim).to(self.choices)
        if torch.equal(rows, self.choices):
            return torch.arange(len(self), device=rows.device).reshape(X.shape[:-1])
        if len(rows) == 1 and not rows.is_meta:
            same = (self.choices == rows).all(dim=-1).nonzero()
            if len(same) > 0:
                return same.reshape(X.shape[:-1])
        position = torch.searchsorted(self._keys, self._key(rows))
        # Rounding may place a key on either side of its equal.
        right = self._order[position.clamp_max(len(self) - 1)]
        left = self._order[(position - 1).clamp_min(0)]
        index = torch.where((self.choices[right] == rows).all(dim=-1), right, left)
        inexact = (self.choices[index] != rows).any(dim=-1)
        if inexact.any():
            index[inexact] = torch.cat(
                [self._search(part) for part in rows[inexact].split(SEARCH_CHUNK)]
            )
        return index.reshape(X.shape[:-1])

    def _key(self, rows: Tensor) -> Tensor:
        return (rows * self._direction).sum(dim=-1)

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
