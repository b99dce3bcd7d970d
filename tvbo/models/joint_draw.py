"""A draw from a joint Gaussian whose covariance may be singular to rounding."""

from __future__ import annotations

import torch
from botorch.posteriors import GPyTorchPosterior
from torch import Generator, Tensor

JITTERS = (1e-9, 1e-6)
"""Shares of the largest variance added to the diagonal of a covariance; the second where noise is
so small that rounding makes the covariance indefinite by more than the first. Neighbours on a fine
grid differ by less than rounding; with the addition the Cholesky factor, which is unique, is
continuous in the covariance as well, so that the same draw is made on every CPU."""


def joint_draw(posterior: GPyTorchPosterior, generator: Generator) -> tuple[Tensor, Tensor]:
    """One draw of all rows together, and their mean, ``n`` each.

    Args:
        posterior: Of ``n`` rows, one output and no batch.
        generator: Source of the draw.

    Raises:
        ValueError: if the covariance is not positive semi-definite.
    """
    mean, covar = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    largest, unit = covar.diagonal().max(), torch.eye(len(covar)).to(covar)
    for jitter in JITTERS:
        root, info = torch.linalg.cholesky_ex(covar + jitter * largest * unit)
        if info == 0:
            normal = torch.randn(len(mean), dtype=mean.dtype, generator=generator)
            return mean + root @ normal.to(mean), mean
    raise ValueError(
        "Expected a positive semi-definite posterior covariance. Got one that is not, by more than "
        f"{JITTERS[-1]:g} of its largest variance."
    )
