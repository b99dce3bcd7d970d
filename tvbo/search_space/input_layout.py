"""The layout of a model's input: a row is ``[action | context | time]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.utils.transforms import normalize_indices
from torch import Tensor

from tvbo.validation import check_finite, check_last_dimension


@dataclass(frozen=True)
class InputLayout:
    """Columns of actions, contexts and time in a row ``[action | context | time]``.

    No other class fixes the columns of context and time.

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
            context: A ``c``-dimensional context, or None if there are no context columns.

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
        """Return time and context as ``fixed_features`` of BoTorch's ``optimize_acqf``."""
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
    """Return the index of the time column, and those of all other columns in order.

    Raises:
        ValueError: if ``time_feature`` is no column.
        BotorchTensorDimensionError: if there is no other column.
    """
    if num_columns < 2:
        raise BotorchTensorDimensionError(
            f"Expected rows with time and at least one other column. Got {num_columns} column."
        )
    time_column = _column(time_feature, num_columns)
    return time_column, [i for i in range(num_columns) if i != time_column]


def split_context(
    context_features: Sequence[int], time_feature: int | None, num_columns: int
) -> tuple[list[int], list[int], int | None]:
    """Return the indices of action columns, context columns, and the time column or None.

    Raises:
        ValueError: if a feature is no column, or two of them are the same column.
        BotorchTensorDimensionError: if there is no context, or no column is left for actions.
    """
    context = [_column(feature, num_columns) for feature in context_features]
    time = None if time_feature is None else _column(time_feature, num_columns)
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


def _column(feature: int, num_columns: int) -> int:
    """Return a column's index from 0; raise a ValueError if there is no such column."""
    indices = normalize_indices([feature], d=num_columns)
    assert indices is not None
    return indices[0]
