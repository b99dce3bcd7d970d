"""The Cholesky factor of new outcomes given all earlier ones."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

CERTAIN = 1e-13
"""Share of its prior variance below which the variance of an outcome is numerically zero."""


def innovation_root(covar: Tensor, noise: Tensor, prior_variance: Tensor) -> Tensor:
    """Return the Cholesky factor of the covariance of new outcomes given all earlier ones.

    Args:
        covar: Posterior covariances of the function, ``... x q x q``.
        noise: Noise variances of the new outcomes, ``... x q``.
        prior_variance: Prior variances of the function, ``... x q``.

    Returns:
        ``... x q x q``, lower triangular.

    Raises:
        InputDataError: if the predictive variance of an outcome is numerically zero.
    """
    root, info = torch.linalg.cholesky_ex(covar + torch.diag_embed(noise))
    certain = root.diagonal(dim1=-2, dim2=-1).square() <= CERTAIN * prior_variance
    if (info > 0).any() or certain.any():
        raise InputDataError(
            "Expected outcomes that are not certain already. Got one whose variance is zero to "
            "rounding: a repeat without noise, or a covariance that is not positive semi-definite."
        )
    factor: Tensor = root
    return factor
