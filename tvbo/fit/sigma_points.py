"""Points and weights for averages over the hyperparameters of the default model."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tvbo.fit.log_posterior import LogPosterior
from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.models.averaged_gp import HyperparameterSets

LEAST_CURVATURE = 0.25
"""Least curvature of the negative log posterior, that of a standard deviation of 2 of a logarithm,
which is more than under any of the priors."""

MOST = 250
"""Number of observations above which hyperparameters are certain enough to take their mode."""


def quadrature(posterior: LogPosterior) -> HyperparameterSets | None:
    r"""Return points about the mode with importance weights, to integrate hyperparameters out.

    The integral is over the logarithms of the :math:`p` hyperparameters, of the density that a fit
    maximizes: the logarithms have normal priors with the mode of BoTorch's. Its log-normal prior
    with location :math:`\mu` and scale :math:`s` counts as that with location :math:`\mu - s^2`,
    under which short lengthscales weigh more, and no more than for the fit. With
    :math:`V \Lambda V^\top` the Hessian of the negative log density at the mode, the points are the
    mode and those :math:`\pm\sqrt{p + 1}` standard deviations away along each column of :math:`V`,
    cut at the bounds: an unscented transform. A Gaussian has its mean and covariance under the
    weights :math:`1 / (p + 1)` and :math:`1 / (2 p + 2)`; these are multiplied by the ratio of the
    density to that Gaussian, as in Rue, Martino, Chopin (2009), Section 6.5. So the sum of the
    weights estimates the evidence, by which forms of drift are compared.

    Args:
        posterior: Log posterior of a model that has the hyperparameters of the mode.

    Returns:
        The sets; None if the density or the Hessian is not finite at the mode. Above 250
        observations the mode is the only point.
    """
    mode = posterior.present().clip(*posterior.bounds.T)
    density, _, mean = posterior(mode)
    quadratic = posterior.quadratic(mode) if math.isfinite(density) else None
    if quadratic is None:
        return None
    free = np.flatnonzero(~quadratic.held)
    curvatures, directions = np.linalg.eigh(quadratic.hessian[np.ix_(free, free)])
    curvatures = curvatures.clip(LEAST_CURVATURE)
    p = len(free)
    volume = 0.5 * (p * math.log(2 * math.pi) - np.log(curvatures).sum())
    points, means = [mode], [mean]
    if len(posterior.y) > MOST:
        log_weights = [density + volume]
    else:
        log_weights = [density + volume - math.log(p + 1)]
        for direction in (directions * np.sqrt((p + 1) / curvatures)).T:
            for sign in (1.0, -1.0):
                point = mode.copy()
                point[free] += sign * direction
                point = point.clip(*posterior.bounds.T)
                density, mean = posterior.density_and_mean(point)
                if math.isfinite(density):
                    # Of the point itself, which a bound may have brought nearer.
                    steps = directions.T @ (point - mode)[free]
                    density += 0.5 * (curvatures @ steps**2)
                    points.append(point)
                    means.append(mean)
                    log_weights.append(density + volume - math.log(2 * p + 2))
    theta, d = np.array(points), len(posterior.squares)
    lengthscale, pace, *noise = posterior.parameters
    return HyperparameterSets(
        lengthscales=lengthscale.values(theta[:, :d]),
        temporal_kernel=_temporal_kernel(posterior.is_decay, pace.values(theta[:, d])),
        mean=torch.tensor(means, dtype=torch.float64),
        noise=noise[0].values(theta[:, -1]) if noise else None,
        log_weights=torch.tensor(log_weights, dtype=torch.float64),
    )


def _temporal_kernel(is_decay: bool, paces: Tensor) -> TemporalKernel:
    """Return exponential decay with rates ε, or Matérn-5/2 with lengthscales, ``s``."""
    shape = paces.shape
    kernel: TemporalDecayKernel | TemporalMaternKernel
    if is_decay:
        kernel = TemporalDecayKernel(batch_shape=shape).double()
        kernel.forgetting_rate = paces.unsqueeze(-1)
    else:
        kernel = TemporalMaternKernel(nu=2.5, batch_shape=shape).double()
        kernel.lengthscale = paces[:, None, None]
    kernel.requires_grad_(False)
    return kernel
