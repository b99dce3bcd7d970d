"""Correlations of actions as functions of their distance, fast in NumPy and also in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from tvbo.models.closed_form import Array

LEAST_SQUARE = 1e-30
"""Squared distance below which the square root has no gradient, as that of Matérn has none at 0."""


@dataclass(frozen=True)
class Correlation:
    r"""The correlation :math:`\kappa` at squared distances :math:`s` in units of lengthscales.

    Args:
        with_slope: Returns :math:`\kappa` and :math:`-2\, d\kappa / ds`, in NumPy.
        in_torch: Returns :math:`\kappa` in PyTorch, which can be differentiated.
    """

    with_slope: Callable[[Array], tuple[Array, Array]]
    in_torch: Callable[[Tensor], Tensor]


def correlation_of(kernel: Kernel) -> Correlation:
    """Return the correlation of a kernel of GPyTorch.

    Raises:
        UnsupportedError: if it is neither an ``RBFKernel`` nor a ``MaternKernel`` with ν = 2.5.
    """
    if isinstance(kernel, RBFKernel):
        return Correlation(_rbf, _rbf_in_torch)
    if isinstance(kernel, MaternKernel) and kernel.nu == 2.5:
        return Correlation(_matern, _matern_in_torch)
    raise UnsupportedError(
        f"Expected an RBFKernel, or a MaternKernel with nu=2.5. Got {type(kernel).__name__}"
        f"{f' with nu={kernel.nu}' if isinstance(kernel, MaternKernel) else ''}."
    )


def _rbf(squares: Array) -> tuple[Array, Array]:
    values = np.exp(-0.5 * squares)
    return values, values


def _rbf_in_torch(squares: Tensor) -> Tensor:
    values: Tensor = (-0.5 * squares).exp()
    return values


def _matern(squares: Array) -> tuple[Array, Array]:
    x = math.sqrt(5) * np.sqrt(squares)
    decay = np.exp(-x)
    # With the derivative by x, -x (1 + x) / 3 exp(-x), and that of x by s, 5 / (2 x).
    slopes = (5 / 3) * (1 + x) * decay
    return 0.6 * slopes + (x * x / 3) * decay, slopes


def _matern_in_torch(squares: Tensor) -> Tensor:
    x = math.sqrt(5) * squares.clamp_min(LEAST_SQUARE).sqrt()
    values: Tensor = (1 + x + x * x / 3) * (-x).exp()
    return values
