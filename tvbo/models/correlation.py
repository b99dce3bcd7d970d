"""Correlations as functions of distance, fast in NumPy and also in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from tvbo.models.closed_form import Array

LEAST_SQUARE = 1e-36
"""Squared distances below this count as this, since the square root has no derivative at 0."""


@dataclass(frozen=True)
class Correlation:
    r"""The correlation :math:`\kappa` at squared distances :math:`s` in units of lengthscales.

    Args:
        evaluate: Returns :math:`\kappa` in NumPy, and where asked the slope
            :math:`-2\, d\kappa / ds`, None otherwise.
        in_torch: Returns :math:`\kappa` in PyTorch, differentiable once.
    """

    evaluate: Callable[[Array, bool], tuple[Array, Array | None]]
    in_torch: Callable[[Tensor], Tensor]


def correlation_of(kernel: Kernel) -> Correlation:
    """Return the correlation of a kernel of GPyTorch.

    Raises:
        UnsupportedError: if it is neither an ``RBFKernel`` nor a ``MaternKernel`` with ν = 2.5.
    """
    if isinstance(kernel, RBFKernel):
        return RBF
    if isinstance(kernel, MaternKernel) and kernel.nu == 2.5:
        return MATERN
    raise UnsupportedError(
        f"Expected an RBFKernel, or a MaternKernel with nu=2.5. Got {type(kernel).__name__}"
        f"{f' with nu={kernel.nu}' if isinstance(kernel, MaternKernel) else ''}."
    )


def _rbf(squares: Array, with_slope: bool) -> tuple[Array, Array | None]:
    values = np.exp(-0.5 * squares)
    return values, values if with_slope else None


def _rbf_in_torch(squares: Tensor) -> Tensor:
    values: Tensor = (-0.5 * squares).exp()
    return values


def _matern(squares: Array, with_slope: bool) -> tuple[Array, Array | None]:
    # In place, since memory for a thousand rows takes longer than the arithmetic.
    x = 5 * squares
    np.sqrt(x, out=x)
    decay = -x
    np.exp(decay, out=decay)
    linear = 1 + x
    linear *= decay
    values = np.square(x, out=x)
    values *= decay
    values /= 3
    values += linear
    if not with_slope:
        return values, None
    # The derivative by x is -x (1 + x) / 3 exp(-x), and that of x by s is 5 / (2 x).
    linear *= 5 / 3
    return values, linear


def _matern_in_torch(squares: Tensor) -> Tensor:
    x = (5 * squares.clamp_min(LEAST_SQUARE)).sqrt()
    values: Tensor = (1 + x + x * x / 3) * (-x).exp()
    return values


RBF = Correlation(_rbf, _rbf_in_torch)
MATERN = Correlation(_matern, _matern_in_torch)
"""Of Matérn-5/2."""
