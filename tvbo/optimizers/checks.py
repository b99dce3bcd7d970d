"""Single values that a caller hands to an optimizer."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


def check_time(t: float) -> float:
    """Return ``t`` as a float; raise unless it is finite."""
    t = float(t)
    if not math.isfinite(t):
        raise InputDataError(f"Expected a finite time. Got t={t}.")
    return t


def as_scalar(name: str, value: Tensor | float) -> Tensor:
    """One number as a ``1 x 1`` float64 tensor."""
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.numel() != 1:
        raise BotorchTensorDimensionError(
            f"Expected {name} to be one number. Got {name}.shape={tuple(value.shape)}."
        )
    return value.detach().reshape(1, 1)
