"""Bounds of a box, in the forms of BoTorch, SciPy, Optuna and Ax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.spaces.observations import check_coordinates
from tvbo.values import as_numbers

Bounds = Tensor | np.ndarray | Sequence[Sequence[float]]
"""A ``2 x d`` tensor or array, lower then upper, or a list or tuple of ``d`` pairs (lower, upper).
"""


def as_bounds(name: str, bounds: Bounds, width: str = "d", constant: bool = False) -> Tensor:
    """Return bounds as a ``2 x d`` float64 tensor, lower then upper.

    Args:
        name: Name of the argument in errors.
        bounds: A ``2 x d`` tensor or array, as BoTorch takes it, or a Python list or tuple of ``d``
            pairs (lower, upper), as SciPy, Optuna and Ax take them. A list that reads as ``2 x d``
            and not as pairs is rejected; so is a list of two pairs that can be read in both ways.
        width: The letter for the number of columns in errors.
        constant: Whether a lower bound may be equal to its upper one.

    Raises:
        BotorchTensorDimensionError: if the shape is none of these.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound is above its upper
            one, or a list can be read in two ways.
    """
    forms = f"{name} of shape 2 x {width}, as a tensor, or a list of {width} pairs (lower, upper)"
    is_list = isinstance(bounds, (list, tuple))
    values = as_numbers(name, bounds)
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
    """Format ``2 x d`` bounds, for example ``x1 in [0, 1], x2 in [0, 1]``."""
    pairs = bounds.mT.tolist()
    return ", ".join(f"x{i} in [{low:g}, {high:g}]" for i, (low, high) in enumerate(pairs, 1))
