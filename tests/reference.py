"""Kernels and dense posteriors that the tests compare with."""

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.means import ZeroMean

from tvbo.models import TimeVaryingGP


def with_lengthscale(kernel, lengthscale):
    """Set the length-scale; a tensor, since GPyTorch rounds a plain number to single precision."""
    kernel.lengthscale = torch.as_tensor(lengthscale, dtype=torch.float64)
    return kernel


def rbf(lengthscale=0.3, **options):
    return with_lengthscale(RBFKernel(**options).double(), lengthscale)


def matern(lengthscale=0.3, nu=2.5, **options):
    return with_lengthscale(MaternKernel(nu, **options).double(), lengthscale)


def dense_gp(X, Y, noise, rate, covar_module, **options):
    """A model of raw outcomes with the data; ``noise`` is a number, or one for each row."""
    Yvar = noise if torch.is_tensor(noise) else torch.full_like(Y, noise)
    options = {"mean_module": ZeroMean(), "outcome_transform": None, **options}
    return TimeVaryingGP(X, Y, Yvar, forgetting_rate=rate, covar_module=covar_module, **options)


def rbf_posterior(X, Y, noise, at, lengthscale=0.2):
    """Posterior means and variances at rows ``at``, in NumPy, under a squared exponential.

    ``noise`` is a number, or one for each row of X.
    """

    def covariance(one, two):
        squared = ((one[:, None, :] - two[None, :, :]) ** 2).sum(-1)
        return np.exp(-0.5 * squared / lengthscale**2)

    k = covariance(X, at)
    weights = np.linalg.solve(covariance(X, X) + np.diag(np.broadcast_to(noise, len(X))), k)
    return weights.T @ Y, 1 - (k * weights).sum(axis=0)
