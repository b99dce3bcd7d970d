"""Gradients derived by hand, handed to autograd."""

from __future__ import annotations

import torch
from numpy.typing import NDArray
from torch import Tensor


def with_gradient(value: float, *parts: tuple[Tensor, Tensor | NDArray | float]) -> Tensor:
    r"""A scalar of a given value and given derivatives.

    To ``value`` are added terms of value zero, :math:`\langle G, X - X_0 \rangle`, each of which
    carries the derivative ``G`` in the tensor ``X``. Autograd takes it from there to whatever
    ``X`` was computed from.

    Args:
        value: The value.
        *parts: Pairs of a tensor and the derivative in it, of the same shape.
    """
    total = torch.tensor(value, dtype=torch.float64)
    for tensor, gradient in parts:
        if tensor.requires_grad:
            gradient = torch.as_tensor(gradient, dtype=torch.float64)
            total = total + (gradient * (tensor - tensor.detach())).sum()
    return total
