"""A finite set of actions: its rows, checked, and where a row stands among them."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.nn import Module

from tvbo.validation import check_coordinates, check_finite, check_last_dimension

SINGLE_PRECISION = 1e-6
"""Relative difference up to which two numbers are one: torch's default is float32."""

SEARCH_CHUNK = 256
"""Rows compared with the whole set at once, where they are not exactly in it."""

GOLDEN = 0.5 * (5**0.5 - 1)


class RowIndex(Module):
    """``n`` rows, no two alike.

    Args:
        choices: ``n x d``; kept as a float64 copy on its device.
        name: What the rows are called in errors.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite or beyond 1e100, or the rows contain duplicates.
    """

    choices: Tensor

    def __init__(self, choices: Tensor, name: str = "choices"):
        super().__init__()
        self.name = name
        choices = torch.as_tensor(choices, dtype=torch.float64).clone()
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
        # Rows are found by a key in sorted order: one number per row, on a direction in which the
        # points of a grid do not coincide.
        steps = torch.arange(1, self.dim + 1, dtype=torch.float64, device=choices.device)
        self.register_buffer("_direction", 0.5 + (steps * GOLDEN).frac(), persistent=False)
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
        """Position of each row among the choices, to single precision.

        Args:
            X: Rows, ``... x d``.

        Returns:
            Positions, ``...``.

        Raises:
            BotorchTensorDimensionError: if ``X`` has the wrong width.
            InputDataError: if a row is none of the choices.
        """
        check_last_dimension("X", X, self.dim)
        rows = X.reshape(-1, self.dim).to(self.choices)
        if torch.equal(rows, self.choices):
            return torch.arange(len(self), device=rows.device).reshape(X.shape[:-1])
        place = torch.searchsorted(self._keys, self._key(rows))
        # A key may round to either side of the one it equals.
        right = self._order[place.clamp_max(len(self) - 1)]
        left = self._order[(place - 1).clamp_min(0)]
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
    """Every action in every context, ``n m x (d + c)``: all contexts of the first action first.

    Args:
        choices: ``n x d``.
        contexts: ``m x c``.

    Raises:
        BotorchTensorDimensionError: if one of them is not a matrix.
        InputDataError: if an entry is not finite, or a row stands twice.
    """
    choices, contexts = RowIndex(choices).choices, RowIndex(contexts, "contexts").choices
    actions = choices.repeat_interleave(len(contexts), dim=0)
    return torch.cat([actions, contexts.repeat(len(choices), 1)], dim=-1)
