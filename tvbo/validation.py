"""Checks of tensors and numbers passed by a caller."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

T = TypeVar("T")

LARGEST_COORDINATE = 1e100
"""Largest coordinate: kernels compute squares of coordinates and of their differences."""

LARGEST_TIME = 1e300
"""Largest time: differences of times must be finite as well."""

LARGEST_OUTCOME = 1e50
"""Largest outcome, in prior standard deviations. A prediction may have 1e-5 of the prior standard
deviation, and the search for the best action computes fourth powers of the ratio."""


def check_last_dimension(name: str, tensor: Tensor, width: int) -> None:
    """Raise unless the last dimension of ``tensor`` is ``width``."""
    if tensor.ndim == 0 or tensor.shape[-1] != width:
        raise BotorchTensorDimensionError(
            f"Expected {name} with last dimension {width}. Got {name}.shape={tuple(tensor.shape)}."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise if ``tensor`` contains a NaN or an infinity, with the index of the first one."""
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


def check_forgetting_rate(forgetting_rate: Tensor | float) -> Tensor:
    """Return ε as a float64 tensor; raise unless it lies in [0, 1]."""
    rate = torch.as_tensor(forgetting_rate, dtype=torch.float64)
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError(f"Expected forgetting_rate in [0, 1]. Got {forgetting_rate}.")
    return rate


def check_time(t: float) -> float:
    """Return ``t`` as a float; raise unless it is finite and at most :data:`LARGEST_TIME`."""
    t = float(t)
    if not math.isfinite(t):
        raise InputDataError(f"Expected a finite time. Got t={t}.")
    if abs(t) > LARGEST_TIME:
        raise InputDataError(
            f"Expected a time between {-LARGEST_TIME:g} and {LARGEST_TIME:g}. Got t={t}."
        )
    return t


def check_outcome(Y: float, Yvar: float | None, unit: float) -> None:
    """Raise unless models can compute with an outcome.

    Args:
        Y: A finite outcome.
        Yvar: Variance of its noise, finite and at least 0, or None.
        unit: Order of magnitude of the prior standard deviation, in outcome units.

    Raises:
        InputDataError: if ``Y`` or the root of ``Yvar`` is beyond :data:`LARGEST_OUTCOME` units.
    """
    largest = LARGEST_OUTCOME * unit
    if abs(Y) > largest:
        raise InputDataError(
            f"Expected Y between {-largest:.3g} and {largest:.3g}, the range in which predictions "
            f"can be computed. Got {Y}."
        )
    if Yvar is not None and Yvar > largest**2:
        raise InputDataError(
            f"Expected Yvar between 0 and {largest**2:.3g}, the range in which predictions can be "
            f"computed. Got {Yvar}."
        )


def as_scalar(name: str, value: Tensor | float) -> Tensor:
    """Return one number as a ``1 x 1`` float64 tensor."""
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.numel() != 1:
        raise BotorchTensorDimensionError(
            f"Expected {name} to be one number. Got {name}.shape={tuple(value.shape)}."
        )
    return value.detach().reshape(1, 1)


def provided(value: T | None) -> T:
    """Return what the first fit or update provides.

    Raises:
        RuntimeError: before that.
    """
    if value is None:
        raise RuntimeError("Expected a fit, or an update of the posterior, first. Got none yet.")
    return value
