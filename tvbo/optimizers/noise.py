"""The noise that outcomes come with, and the least of it that a model can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel
from gpytorch.settings import min_fixed_noise
from torch import Tensor

from tvbo.models.innovation_root import CERTAIN
from tvbo.models.raw import outcome_scale
from tvbo.observations import Observations

if TYPE_CHECKING:
    from tvbo.optimizers.surrogate import GPSurrogate


def known_noise(
    dense: GPSurrogate, covar_module: Kernel, observations: Observations
) -> Tensor | None:
    """Noise variances of observations as told or given, ``n x 1``, at least :func:`least_noise`.

    Args:
        dense: Knows what was given, and has made a model.
        covar_module: Kernel over rows, in raw units.
        observations: ``n`` of them.

    Returns:
        The variances; None where the noise is learned.
    """
    known = observations.Yvar
    if known is None and dense.noise_variance is None:
        return None
    if known is None:
        known = torch.full_like(observations.Y, dense.noise_variance)
    with torch.no_grad():
        prior = covar_module(observations.X, diag=True)
    return torch.maximum(known, least_noise(dense.last_model, prior).unsqueeze(-1))


def least_noise(dense: SingleTaskGP, prior_variance: Tensor) -> Tensor:
    """The least noise variance that a dense model takes, in raw units, shape of the prior variance.

    GPyTorch has one in the units that the model sees. Where the kernel is large beside it, a repeat
    would still be certain to rounding, and no further outcome could be taken in.
    """
    least = min_fixed_noise.value(torch.float64) * outcome_scale(dense)[1] ** 2
    return (10 * CERTAIN * prior_variance).clamp_min(least)
