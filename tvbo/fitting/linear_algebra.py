"""Whitening, the generalized least squares mean, and gradients derived by hand."""

from __future__ import annotations

import numpy as np
import torch
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from torch import Tensor


def whiten(covar: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of a covariance, and series whitened by it.

    Args:
        covar: ``n x n``.
        series: ``n x m``.

    Raises:
        NotPSDError: if the covariance is singular to rounding.
    """
    root, info = torch.linalg.cholesky_ex(covar)
    check_factored(int(info))
    return root, torch.linalg.solve_triangular(root, series, upper=False)


def check_factored(info: int) -> None:
    """Raise unless a Cholesky factorization succeeded.

    Args:
        info: The status that LAPACK returned; 0 is success.

    Raises:
        NotPSDError: if it did not succeed.
    """
    # No jitter: it would act as additional noise, and change the likelihood.
    if info != 0:
        raise NotPSDError("The covariance of the log is singular to rounding.")


def weighted_mean(
    white_y: Tensor | NDArray[np.float64], white_one: Tensor | NDArray[np.float64]
) -> float:
    """Return the generalized least squares mean from whitened outcomes and whitened ones.

    A float, not a tensor: the likelihood is stationary in the mean, so no gradient flows through.
    """
    return float((white_y * white_one).sum() / (white_one * white_one).sum())


def with_gradient(
    value: float, *parts: tuple[Tensor, Tensor | NDArray[np.float64] | float]
) -> Tensor:
    r"""Return a scalar tensor with a given value and given derivatives.

    To ``value`` are added terms of value zero, :math:`\langle G, X - X_0 \rangle`, each of which
    carries the derivative ``G`` with respect to the tensor ``X``. Autograd continues from ``X`` to
    whatever ``X`` was computed from.

    Args:
        value: The value.
        *parts: Pairs of a tensor and the derivative with respect to it, of the same shape.
    """
    total = torch.tensor(value, dtype=torch.float64)
    for tensor, gradient in parts:
        if tensor.requires_grad:
            gradient = torch.as_tensor(gradient, dtype=torch.float64)
            total = total + (gradient * (tensor - tensor.detach())).sum()
    return total
