"""Whitening by the Cholesky factor of a covariance, as it stands."""

from __future__ import annotations

import torch
from linear_operator.utils.errors import NotPSDError
from torch import Tensor


def whiten(covar: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of ``covar``, ``n x n``, and ``series``, ``n x m``, whitened by it.

    Raises:
        NotPSDError: if the covariance is singular to rounding.
    """
    root, info = torch.linalg.cholesky_ex(covar)
    check_factored(int(info))
    return root, torch.linalg.solve_triangular(root, series, upper=False)


def check_factored(info: int) -> None:
    """Raise unless a Cholesky factorization succeeded, as LAPACK says it in ``info``.

    Raises:
        NotPSDError: if it did not.
    """
    # No jitter: it would be noise that nobody asked for, and change the likelihood.
    if info != 0:
        raise NotPSDError("The covariance of the log is singular to rounding.")
