"""Functions of rows and correlations with gradients in closed form, in NumPy, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

Array = NDArray[np.float64]

Pullback = Callable[[Array], Array]
"""Takes derivatives by the values, ``k x b``, to derivatives by the rows, ``b x d``."""

Evaluate = Callable[[Array, bool], tuple[Array, Pullback | None]]
"""Takes rows ``b x d``, and whether derivatives are needed, to values ``k x b`` and a pullback."""

LEAST_SQUARE = 1e-36
"""Squared distances below this count as this, since the square root has no derivative at 0."""


class ClosedForm(torch.autograd.Function):
    """Give a function in NumPy, with its gradient, to PyTorch.

    For some hundred numbers, PyTorch's graph takes ten times as long as they do in NumPy.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, evaluate: Evaluate) -> Tensor:
        """Return values ``k x ...`` at rows ``... x d``.

        Args:
            ctx: PyTorch's context.
            X: The rows.
            evaluate: The function.
        """
        rows = X.detach().reshape(-1, X.shape[-1]).numpy(force=True)
        values, ctx.pullback = evaluate(rows, ctx.needs_input_grad[0])
        return torch.from_numpy(values).to(X.device).view(-1, *X.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_values: Tensor) -> tuple[Tensor, None]:
        """Return the gradient by the rows, ``... x d``."""
        by_rows = torch.from_numpy(ctx.pullback(by_values.flatten(1).numpy(force=True)))
        return by_rows.to(by_values.device).view(*by_values.shape[1:], -1), None


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
