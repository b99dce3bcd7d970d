"""Points and weights for averages over the hyperparameters of the default model."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.models.averaged_gp import HyperparameterSets
from tvbo.optimizers.log_posterior import PART, LogPosterior

LEAST_CURVATURE = 0.25
"""Of the negative log posterior: no hyperparameter is taken to be less certain than by a factor
e² either way, which is wider than its prior."""


def quadrature(posterior: LogPosterior) -> HyperparameterSets | None:
    r"""Return the points of an unscented transform about the mode, weighted by the density.

    With :math:`p` hyperparameters on the logarithmic scale and the Hessian :math:`V \Lambda V^\top`
    of the negative log density at the mode, these are the mode and the :math:`2p` points
    :math:`\pm\sqrt{p + 1}` standard deviations along each column of :math:`V`. A Gaussian has its
    mean and covariance under the weights :math:`1 / (p + 1)` and :math:`1 / (2 p + 2)`, which are
    multiplied by the ratio of the density to that Gaussian (as the integration points of Rue,
    Martino, Chopin, 2009, Section 6.5). So the sum of the weights estimates the evidence, by which
    forms of drift are compared. Above 250 observations, where hyperparameters are certain, the mode
    stands alone, with the density as its weight.

    Args:
        posterior: Log posterior of a model that has the hyperparameters of the mode.

    Returns:
        The sets; None if the density is not finite at the mode.
    """
    mode = posterior.present().clip(*posterior.bounds.T)
    density, _, mean = posterior(mode)
    if not math.isfinite(density):
        return None
    points, means, log_weights = [mode], [mean], [density]
    quadratic = posterior.quadratic(mode) if len(posterior.y) <= PART else None
    if quadratic is not None:
        free = np.flatnonzero(~quadratic.held)
        curvatures, directions = np.linalg.eigh(quadratic.hessian[np.ix_(free, free)])
        curvatures = curvatures.clip(LEAST_CURVATURE)
        p = len(free)
        log_weights[0] -= math.log(p + 1)
        for direction in (directions * np.sqrt((p + 1) / curvatures)).T:
            for sign in (1.0, -1.0):
                point = mode.copy()
                point[free] += sign * direction
                point = point.clip(*posterior.bounds.T)
                density, _, mean = posterior(point)
                if math.isfinite(density):
                    points.append(point)
                    means.append(mean)
                    log_weights.append(density + 0.5 * (p + 1) - math.log(2 * p + 2))
        volume = 0.5 * (p * math.log(2 * math.pi) - np.log(curvatures).sum())
        log_weights = [each + volume for each in log_weights]
    values = torch.from_numpy(np.exp(np.array(points)))
    d = len(posterior.squares)
    return HyperparameterSets(
        lengthscales=values[:, :d],
        temporal_kernel=_temporal_kernel(posterior.is_decay, values[:, d]),
        mean=torch.tensor(means, dtype=torch.float64),
        noise=values[:, -1] if posterior.noise is None else None,
        log_weights=torch.tensor(log_weights, dtype=torch.float64),
    )


def _temporal_kernel(is_decay: bool, paces: Tensor) -> TemporalKernel:
    """Return exponential decay with rates ρ, or Matérn-5/2 with lengthscales, ``s``."""
    shape = paces.shape
    kernel: TemporalDecayKernel | TemporalMaternKernel
    if is_decay:
        kernel = TemporalDecayKernel(batch_shape=shape).double()
        # The exponential of the logarithm of a bound may lie beyond it.
        constraint = kernel.raw_forgetting_rate_constraint
        low, high = constraint.lower_bound.item(), constraint.upper_bound.item()
        kernel.forgetting_rate = (-torch.expm1(-paces)).clamp(low, high).unsqueeze(-1)
    else:
        kernel = TemporalMaternKernel(nu=2.5, batch_shape=shape).double()
        kernel.lengthscale = paces[:, None, None]
    kernel.requires_grad_(False)
    return kernel
