"""The exact log likelihood of any log by one dense factorization, and the algebra all forms use."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from torch import Tensor

from tvbo.logs.dataset import DriftLog


class DenseLikelihood:
    r"""Log marginal likelihood (24) of Bogunovic et al. (2016), Appendix B, as printed.

    .. math:: \log p(y) = -\tfrac12 r^\top \Sigma^{-1} r - \tfrac12 \log |\Sigma|
        - \tfrac{n}{2} \log 2\pi, \quad
        \Sigma_{ij} = k(x_i, x_j)\,e^{-\rho |t_i - t_j| / 2} + \sigma_i^2 \delta_{ij}

    with :math:`r = y - m` and :math:`\rho = -\log(1 - \varepsilon)`, and
    :math:`\Sigma_{ij} = 0` between different segments. Costs :math:`O(n^3)`.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """

    def __init__(self, log: DriftLog, covar_module: Kernel, mean: float | None):
        self.covar_module = covar_module
        self.mean = mean
        self.actions = log.actions
        self.lags = (log.times.unsqueeze(-1) - log.times).abs()
        # A factor, not an infinite lag, because that has no gradient at ρ = 0.
        self.same_segment = (log.segments.unsqueeze(-1) == log.segments).double()
        self.Yvar = log.Yvar
        self.y_and_one = torch.stack([log.Y, torch.ones_like(log.Y)], dim=-1)

    def covariance(self, rate: Tensor, noise_variance: Tensor) -> Tensor:
        r"""Return :math:`\Sigma`, differentiable.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.
        """
        covar: Tensor = self.covar_module(self.actions).to_dense() * self.same_segment
        covar = covar * torch.exp(-0.5 * rate * self.lags)
        noise = self.Yvar if self.Yvar is not None else noise_variance.expand(len(covar))
        return covar + torch.diag(noise)

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance is singular to rounding.
        """
        covar = self.covariance(rate, noise_variance)
        with torch.no_grad():
            root, white = whiten(covar, self.y_and_one)
            mean = self.mean
            if mean is None:
                mean = weighted_mean(white[:, 0], white[:, 1])
            residual = white[:, 0] - mean * white[:, 1]
            value = (
                -0.5 * residual.square().sum()
                - root.diagonal().log().sum()
                - 0.5 * len(covar) * math.log(2 * math.pi)
            ).item()
        if not torch.is_grad_enabled():
            return torch.tensor(value, dtype=torch.float64), mean
        with torch.no_grad():
            # The derivative (25) with respect to the covariance, which is cheaper than to
            # differentiate the factorization.
            alpha = torch.linalg.solve_triangular(root.mT, residual.unsqueeze(-1), upper=True)
            weights = 0.5 * (alpha @ alpha.mT - torch.cholesky_inverse(root))
        return with_gradient(value, (covar, weights)), mean


def whiten(covar: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of a covariance, and series whitened by it.

    Args:
        covar: ``n x n``.
        series: ``n x m``.

    Raises:
        NotPSDError: if the covariance is singular to rounding.
    """
    root, info = torch.linalg.cholesky_ex(covar)
    check_factored(int(info))
    return root, torch.linalg.solve_triangular(root, series, upper=False)


def check_factored(info: int) -> None:
    """Raise unless a Cholesky factorization succeeded.

    Args:
        info: The status that LAPACK returned; 0 is success.

    Raises:
        NotPSDError: if it did not succeed.
    """
    # No jitter: it would act as additional noise, and change the likelihood.
    if info != 0:
        raise NotPSDError("The covariance of the log is singular to rounding.")


def weighted_mean(
    white_y: Tensor | NDArray[np.float64], white_one: Tensor | NDArray[np.float64]
) -> float:
    """Return the generalized least squares mean from whitened outcomes and whitened ones.

    A float, not a tensor: the likelihood is stationary in the mean, so no gradient flows through.
    """
    return float((white_y * white_one).sum() / (white_one * white_one).sum())


def with_gradient(
    value: float, *parts: tuple[Tensor, Tensor | NDArray[np.float64] | float]
) -> Tensor:
    r"""Return a scalar tensor with a given value and given derivatives.

    To ``value`` are added terms of value zero, :math:`\langle G, X - X_0 \rangle`, each of which
    carries the derivative ``G`` with respect to the tensor ``X``. Autograd continues from ``X`` to
    whatever ``X`` was computed from.

    Args:
        value: The value.
        *parts: Pairs of a tensor and the derivative with respect to it, of the same shape.
    """
    total = torch.tensor(value, dtype=torch.float64)
    for tensor, gradient in parts:
        if tensor.requires_grad:
            gradient = torch.as_tensor(gradient, dtype=torch.float64)
            total = total + (gradient * (tensor - tensor.detach())).sum()
    return total
