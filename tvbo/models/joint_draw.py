"""Draws from a joint normal distribution whose covariance may be numerically singular."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import GPyTorchPosterior, Posterior
from torch import Generator, Tensor

JITTERS = (1e-9, 1e-6)
"""Shares of the largest variance added to the diagonal of a covariance. The second is used where
noise is so small that rounding makes the covariance indefinite by more than the first. Neighbours
on a fine grid differ by less than rounding; with the addition the Cholesky factor, which is unique,
is continuous in the covariance as well, so that every CPU makes the same draw."""


def joint_draw(posterior: Posterior, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return a draw from a joint posterior, and its mean, ``n`` each.

    Args:
        posterior: Normal posterior of ``n`` rows, one output and no batch.
        generator: Source of randomness.

    Raises:
        UnsupportedError: if the posterior is not normal.
        ValueError: if the covariance is not positive semi-definite.
    """
    if not isinstance(posterior, GPyTorchPosterior):
        raise UnsupportedError(f"Expected a GPyTorchPosterior. Got {type(posterior).__name__}.")
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
