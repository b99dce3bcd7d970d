"""Draws of a function at many rows, from any model's posterior."""

from __future__ import annotations

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.models.streaming_gp import StreamingGP

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)
"""Shares of the largest variance, added to the diagonal of a covariance until it can be factorized:
neighbours on a fine grid differ by less than rounding."""


def draw_function(model: Model, rows: Tensor, generator: Generator, scale: float = 1.0) -> Tensor:
    """One function drawn from the joint posterior at ``n`` rows.

    For all choices of a :class:`tvbo.models.StreamingGP`, in their order and at one time, it costs
    as much as a round; otherwise :math:`O(n^3)`.

    Args:
        model: A model of one output and no batch.
        rows: ``n x d``.
        generator: Source of the draw.
        scale: The draw deviates from the posterior mean so many times as much.

    Returns:
        Values, ``n``.

    Raises:
        ValueError: if the posterior covariance is not positive semi-definite.
    """
    with torch.no_grad():
        if isinstance(model, StreamingGP) and model.covers(rows):
            drawn = model.draw(rows[0, -1].item(), generator)
            if drawn is not None:
                if scale == 1.0:
                    return drawn
                mean, _ = model.marginals(rows[0, -1].item())
                return mean + scale * (drawn - mean)
        posterior = model.posterior(rows)
        mean = posterior.mean.squeeze(-1)
        root = _root(posterior.distribution.covariance_matrix)
        normal = torch.randn(len(rows), dtype=mean.dtype, generator=generator)
        return mean + scale * (root @ normal)


def _root(covar: Tensor) -> Tensor:
    largest = covar.diagonal().max()
    for jitter in JITTERS:
        root, info = torch.linalg.cholesky_ex(
            covar + jitter * largest * torch.eye(len(covar), dtype=covar.dtype)
        )
        if info == 0:
            return root
    raise ValueError(
        "Expected a positive semi-definite posterior covariance. Got one that is not, by more than "
        f"{JITTERS[-1]:g} of its largest variance."
    )
