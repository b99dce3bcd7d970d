"""Rows ``[action | context | time]``, their outcomes, and checks of what a caller passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.transforms import normalize_indices
from torch import Tensor

from tvbo.values import copies_tensors


@dataclass(frozen=True)
class InputLayout:
    """Columns of actions, contexts and time in a row ``[action | context | time]``.

    Contexts follow the actions, and time is the last column everywhere.

    Args:
        num_actions: Number of action columns ``d``.
        num_contexts: Number of context columns ``c``; they follow the actions.
    """

    num_actions: int
    num_contexts: int = 0

    @property
    def num_columns(self) -> int:
        """Width of a row, ``d + c + 1``."""
        return self.num_actions + self.num_contexts + 1

    @property
    def time_feature(self) -> int:
        """Index of the time column, the last one."""
        return self.num_actions + self.num_contexts

    @property
    def context_features(self) -> list[int]:
        """Indices of the context columns."""
        return list(range(self.num_actions, self.time_feature))

    def rows(self, X: Tensor, t: float, context: Tensor | None = None) -> Tensor:
        """Append context and time to actions.

        Args:
            X: Actions, ``... x d``.
            t: Time, in the user's unit.
            context: A ``c``-dimensional context; ignored if there are no context columns.

        Returns:
            Rows ``... x (d + c + 1)``.

        Raises:
            BotorchTensorDimensionError: if ``X`` or ``context`` has the wrong width.
        """
        columns, width = [X], 0
        if self.num_contexts and context is not None:
            given = torch.as_tensor(context).to(X).reshape(-1)
            columns.append(given.expand(*X.shape[:-1], -1))
            width = len(given)
        if X.shape[-1] != self.num_actions or width != self.num_contexts:
            raise BotorchTensorDimensionError(
                f"Expected {self.num_actions} columns of actions and a context of size "
                f"{self.num_contexts}. Got X.shape={tuple(X.shape)} and {context!r}."
            )
        columns.append(X.new_full((*X.shape[:-1], 1), float(t)))
        return torch.cat(columns, dim=-1)


@copies_tensors("X", "Y", "Yvar")
@dataclass(frozen=True, eq=False)
class Observations:
    """Rows and their outcomes, in the order in which these came; reading them returns copies.

    Args:
        X: Rows ``[action | context | time]``, ``n x d``.
        Y: Outcomes, ``n x m``; models are given one of them, ``n x 1``.
        Yvar: Known noise variances, in the shape of ``Y``, or None.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor | None = None

    @classmethod
    def empty(cls, num_columns: int) -> Observations:
        """Return no observations, of rows with ``num_columns`` columns, in float64."""
        return cls(
            X=torch.empty(0, num_columns, dtype=torch.float64),
            Y=torch.empty(0, 1, dtype=torch.float64),
        )

    def __len__(self) -> int:
        # Without a copy, as in the other methods: a new object makes its own.
        return len(vars(self)["X"])

    def __getitem__(self, rows: Tensor | slice) -> Observations:
        """Return the observations of some rows, selected by a mask, indices or a slice."""
        X, Y, Yvar = vars(self).values()
        return Observations(X[rows], Y[rows], None if Yvar is None else Yvar[rows])

    def outcome(self, place: int) -> Observations:
        """Return the same rows with one of their outcomes."""
        X, Y, Yvar = vars(self).values()
        part = slice(place, place + 1)
        return Observations(X, Y[:, part], None if Yvar is None else Yvar[:, part])

    def append(self, other: Observations) -> Observations:
        """Return these observations followed by others, with or without variances as they are."""
        if len(self) == 0:
            return other
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        parts = [None if a is None or b is None else torch.cat([a, b]) for a, b in both]
        return Observations(*cast(list[Tensor], parts))


def split_columns(
    num_columns: int, time_feature: int | None, context_features: Sequence[int] | None = None
) -> tuple[list[int], list[int], int | None]:
    """Return the indices of action columns, context columns, and the time column or None.

    Args:
        num_columns: Number of columns of a row.
        time_feature: Index of the time column; None if there is none.
        context_features: Indices of the context columns, one or more; None if there are none.

    Raises:
        ValueError: if a feature is no column, or two of them are the same column.
        BotorchTensorDimensionError: if there is no context, or no column is left for actions.
    """
    features = [*(context_features or ()), *([] if time_feature is None else [time_feature])]
    taken = normalize_indices(features, d=num_columns) or []
    got = (
        f"Got context_features={context_features}, time_feature={time_feature} of {num_columns} "
        "columns."
    )
    if len(set(taken)) < len(taken):
        raise ValueError(f"Expected context_features and time_feature that differ. {got}")
    action = [i for i in range(num_columns) if i not in taken]
    context = taken[: len(context_features or ())]
    if not action or (context_features is not None and not context):
        raise BotorchTensorDimensionError(
            f"Expected a column of actions, and one of contexts where there are any. {got}"
        )
    return action, context, None if time_feature is None else taken[-1]


LARGEST_COORDINATE = 1e100
"""Largest coordinate: kernels compute squares of coordinates and of their differences."""


def check_last_dimension(name: str, tensor: Tensor, width: int) -> None:
    """Raise unless the last dimension of ``tensor`` is ``width``."""
    if tensor.ndim == 0 or tensor.shape[-1] != width:
        raise BotorchTensorDimensionError(
            f"Expected {name} with last dimension {width}. Got {name}.shape={tuple(tensor.shape)}."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise if ``tensor`` contains a NaN or an infinity, with the index of the first one."""
    if math.isfinite(tensor.sum().item()):
        return
    # A sum of finite numbers may overflow.
    finite = torch.isfinite(tensor)
    if not finite.all():
        place = tuple(torch.nonzero(~finite)[0].tolist())
        value = tensor[place].item()
        where = f" at index {place}" if place else ""
        raise InputDataError(f"Expected finite {name}. Got {value}{where}.")


def check_coordinates(name: str, tensor: Tensor) -> None:
    """Raise if ``tensor`` contains a NaN, or a number beyond :data:`LARGEST_COORDINATE`."""
    check_finite(name, tensor)
    largest = tensor.abs().max().item() if tensor.numel() > 0 else 0.0
    if largest > LARGEST_COORDINATE:
        raise InputDataError(
            f"Expected {name} between {-LARGEST_COORDINATE:g} and {LARGEST_COORDINATE:g}. "
            f"Got one of size {largest:g}: state it in another unit."
        )
