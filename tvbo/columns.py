"""The one convention for columns: a model input is a row ``[action | context | time]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.transforms import normalize_indices
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """Where actions, contexts and time stand in a row, and the only place that fixes the last two.

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
        """Index of the time column: the last."""
        return self.num_columns - 1

    @property
    def context_features(self) -> list[int]:
        """Indices of the context columns."""
        return list(range(self.num_actions, self.time_feature))

    def rows(self, X: Tensor, t: float, context: Tensor | None = None) -> Tensor:
        """Append context and time to actions.

        Args:
            X: Actions, ``... x d``.
            t: Time, in the user's unit.
            context: A ``c``-dimensional context, or None where the columns hold none.

        Returns:
            Rows ``... x (d + c + 1)``.

        Raises:
            BotorchTensorDimensionError: if ``X`` or ``context`` has the wrong width.
        """
        check_last_dimension("X", X, self.num_actions)
        parts = [X]
        if self.num_contexts:
            parts.append(self._context(context, X).expand(*X.shape[:-1], -1))
        elif context is not None:
            raise BotorchTensorDimensionError(
                f"This problem was declared without context; got context {context!r}."
            )
        parts.append(X.new_full((*X.shape[:-1], 1), float(t)))
        return torch.cat(parts, dim=-1)

    def fixed_features(self, t: float, context: Tensor | None = None) -> Mapping[int, float]:
        """Time and context in the form that ``optimize_acqf(fixed_features=...)`` takes."""
        fixed = {self.time_feature: float(t)}
        if self.num_contexts:
            values = self._context(context, torch.empty(0, dtype=torch.float64))
            fixed.update(zip(self.context_features, values.tolist(), strict=True))
        return fixed

    def _context(self, context: Tensor | None, like: Tensor) -> Tensor:
        if context is None:
            raise BotorchTensorDimensionError(
                f"This problem has {self.num_contexts} context columns; got no context."
            )
        context = torch.as_tensor(context, dtype=like.dtype, device=like.device)
        check_last_dimension("context", context, self.num_contexts)
        if context.numel() != self.num_contexts:
            raise BotorchTensorDimensionError(
                f"Expected one context for all rows. Got context.shape={tuple(context.shape)}."
            )
        check_finite("context", context)
        return context.reshape(self.num_contexts)


def split_time(time_feature: int, num_columns: int) -> tuple[int, list[int]]:
    """Index of the time column, and those of all the others in order.

    Raises:
        ValueError: if ``time_feature`` is no column.
        BotorchTensorDimensionError: if there is no other column.
    """
    if num_columns < 2:
        raise BotorchTensorDimensionError(
            f"Expected rows with time and at least one other column. Got {num_columns} column."
        )
    [time_column] = normalize_indices([time_feature], d=num_columns)
    return time_column, [i for i in range(num_columns) if i != time_column]


def split_context(
    context_features: Sequence[int], time_feature: int | None, num_columns: int
) -> tuple[list[int], list[int], int | None]:
    """Indices of the action columns, of the context columns, and of the time column, if any.

    Raises:
        ValueError: if a feature is no column, or two of them are the same column.
        BotorchTensorDimensionError: if there is no context, or no column is left for actions.
    """
    context = normalize_indices(list(context_features), d=num_columns)
    time = None if time_feature is None else normalize_indices([time_feature], d=num_columns)[0]
    taken = [*context, *([] if time is None else [time])]
    if len(set(taken)) < len(taken):
        raise ValueError(
            "Expected context_features and time_feature to be different columns. "
            f"Got context_features={list(context_features)}, time_feature={time_feature} "
            f"of {num_columns} columns."
        )
    action = [i for i in range(num_columns) if i not in taken]
    if not context or not action:
        raise BotorchTensorDimensionError(
            "Expected rows with at least one context column and one action column. "
            f"Got context_features={list(context_features)} of {num_columns} columns"
            f"{'' if time is None else ', one of them time'}."
        )
    return action, context, time


Bounds = Tensor | np.ndarray | Sequence[Sequence[float]]
"""A ``2 x d`` tensor or array, lower then upper, or a list or tuple of ``d`` pairs (lower, upper).
"""


def as_bounds(name: str, bounds: Bounds, width: str = "d", constant: bool = False) -> Tensor:
    """Return bounds as a ``2 x d`` float64 tensor, lower then upper.

    Args:
        name: What they are called, for errors.
        bounds: A ``2 x d`` tensor or array, as BoTorch takes it, or a Python list or tuple of ``d``
            pairs (lower, upper), as SciPy, Optuna and Ax take them. A list that reads as ``2 x d``
            and not as pairs is refused; so is one of two pairs that could be meant either way.
        width: The letter for the number of columns, for errors.
        constant: Whether a lower bound may be equal to its upper one.

    Raises:
        BotorchTensorDimensionError: if the shape is none of these.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound is above its upper
            one, or a list can be read in two ways.
    """
    forms = f"{name} of shape 2 x {width}, as a tensor, or a list of {width} pairs (lower, upper)"
    is_list = isinstance(bounds, (list, tuple))
    try:
        rows = [list(row) for row in bounds] if is_list else bounds
        values = torch.as_tensor(rows, dtype=torch.float64).clone()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BotorchTensorDimensionError(f"Expected {forms}. Got {bounds!r}.") from error
    if values.ndim != 2 or values.numel() == 0 or (len(values) != 2 and not is_list):
        raise BotorchTensorDimensionError(
            f"Expected {forms}. Got {name}.shape={tuple(values.shape)}."
        )
    check_coordinates(name, values)
    if is_list:
        stacked, values = values, values.mT.contiguous()
        if stacked.shape[-1] != 2:
            hint = (
                f" For a 2 x {width} tensor, write {_code(stacked)}." if len(stacked) == 2 else ""
            )
            raise BotorchTensorDimensionError(
                f"Expected {forms}. Got the list {bounds!r} of shape {tuple(stacked.shape)}.{hint}"
            )
        # Two pairs may be meant as a row of lower and a row of upper bounds.
        may_be_stacked = len(stacked) == 2 and not torch.equal(stacked, values)
        if may_be_stacked and (stacked[0] < stacked[1]).all():
            if not _in_order(values, constant):
                raise InputDataError(
                    f"Expected {forms}. Got the list {bounds!r}, of which a pair is not in order. "
                    f"If {_intervals(stacked)} is meant, write {_code(stacked)}."
                )
            raise InputDataError(
                f"Expected {name} that can be read in one way only. Got the list {bounds!r}: as "
                f"pairs (lower, upper) {_intervals(values)}, which is {_code(values)}; as a "
                f"2 x {width} tensor {_intervals(stacked)}, which is {_code(stacked)}. Write one."
            )
    if not _in_order(values, constant):
        order = "not above" if constant else "below"
        raise InputDataError(
            f"Expected lower {name} {order} upper {name}. Got {values.tolist()}, lower then upper."
        )
    return values


def _in_order(bounds: Tensor, constant: bool) -> bool:
    return bool(((bounds[0] <= bounds[1]) if constant else (bounds[0] < bounds[1])).all())


def _code(bounds: Tensor) -> str:
    return f"torch.tensor({bounds.tolist()}, dtype=torch.float64)"


def _intervals(bounds: Tensor) -> str:
    """``2 x d`` bounds in words: x1 in [0, 1], x2 in [0, 1]."""
    pairs = bounds.mT.tolist()
    return ", ".join(f"x{i} in [{low:g}, {high:g}]" for i, (low, high) in enumerate(pairs, 1))


def check_last_dimension(name: str, tensor: Tensor, width: int) -> None:
    """Raise unless the last dimension of ``tensor`` is ``width``."""
    if tensor.ndim == 0 or tensor.shape[-1] != width:
        raise BotorchTensorDimensionError(
            f"Expected {name} with last dimension {width}. Got {name}.shape={tuple(tensor.shape)}."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise if ``tensor`` holds a NaN or an infinity, naming the first place."""
    finite = torch.isfinite(tensor)
    if not finite.all():
        place = tuple(torch.nonzero(~finite)[0].tolist())
        value = tensor[place].item()
        where = f" at index {place}" if place else ""
        raise InputDataError(f"Expected finite {name}. Got {value}{where}.")


LARGEST_COORDINATE = 1e100
"""Kernels take squares of coordinates and of their differences, and powers of these."""


def check_coordinates(name: str, tensor: Tensor) -> None:
    """Raise if ``tensor`` holds a NaN, or a number with which kernels cannot compute."""
    check_finite(name, tensor)
    largest = tensor.abs().max().item() if tensor.numel() > 0 else 0.0
    if largest > LARGEST_COORDINATE:
        raise InputDataError(
            f"Expected {name} between {-LARGEST_COORDINATE:g} and {LARGEST_COORDINATE:g}. "
            f"Got one of size {largest:g}: state it in another unit."
        )


def check_forgetting_rate(forgetting_rate: Tensor | float) -> Tensor:
    """Return ε as a float64 tensor; raise unless it lies in [0, 1]."""
    rate = torch.as_tensor(forgetting_rate, dtype=torch.float64)
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"Expected forgetting_rate in [0, 1]. Got {forgetting_rate}.")
    return rate
