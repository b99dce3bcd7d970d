"""Draws of a function at many rows, from the posterior of any model."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from torch import Generator, Tensor

from tvbo.models.streaming_gp import StreamingGP

JITTERS = (1e-9, 1e-6)
"""Shares of the largest variance added to the diagonal of a covariance. The second is used where
noise is so small that rounding makes the covariance indefinite by more than the first. Neighbours
on a fine grid differ by less than rounding; with the addition the Cholesky factor, which is unique,
is continuous in the covariance as well, so that every CPU makes the same draw."""


MAX_EVENTS = 1024
"""Events up to which a draw is made from them, whatever the number of choices."""


def draw_function(model: Model, rows: Tensor, generator: Generator, scale: float = 1.0) -> Tensor:
    """Draw a function from the joint posterior at ``n`` rows.

    It costs :math:`O(n^3)`; for all choices of a :class:`tvbo.models.StreamingGP`, in their order
    and at one time, :math:`O(k^3)` in its ``k`` events where these are fewer than the states.

    Args:
        model: A model of one output and no batch.
        rows: ``n x d``.
        generator: Source of randomness.
        scale: Multiplier on the deviation of the draw from the posterior mean.

    Returns:
        Values, ``n``.

    Raises:
        UnsupportedError: if the posterior is not normal.
        ValueError: if the posterior covariance is not positive semi-definite.
    """
    with torch.no_grad():
        if isinstance(model, StreamingGP) and _all_choices(model, rows):
            t = rows[0, -1].item()
            drawn = model.draw(t, generator)
            mean, _ = model.marginals(t)
        else:
            drawn, mean = joint_draw(model.posterior(rows), generator)
        return drawn if scale == 1.0 else mean + scale * (drawn - mean)


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


def _all_choices(model: StreamingGP, rows: Tensor) -> bool:
    """Return whether rows are all choices at one time, and few events are known of them."""
    return (
        torch.equal(rows[:, :-1], model.choices)
        and bool((rows[:, -1] == rows[0, -1]).all())
        and model.events.shape[-1] <= max(model.mean.numel(), MAX_EVENTS)
    )
