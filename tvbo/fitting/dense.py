"""The exact log likelihood of any log by one dense factorization."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.fitting.dataset import DriftLog
from tvbo.fitting.linear_algebra import weighted_mean, whiten, with_gradient


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

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance is singular to rounding.
        """
        covar = self.covar_module(self.actions).to_dense() * self.same_segment
        covar = covar * torch.exp(-0.5 * rate * self.lags)
        noise = self.Yvar if self.Yvar is not None else noise_variance.expand(len(covar))
        covar = covar + torch.diag(noise)
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
        return with_gradient(value, (covar, self._weights(root, residual))), mean

    @staticmethod
    def _weights(root: Tensor, residual: Tensor) -> Tensor:
        r"""Return the derivative (25) with respect to the covariance.

        It is :math:`\tfrac12 (\alpha\alpha^\top - \Sigma^{-1})`, which is cheaper than to
        differentiate the factorization.
        """
        with torch.no_grad():
            alpha = torch.linalg.solve_triangular(root.mT, residual.unsqueeze(-1), upper=True)
            weights: Tensor = 0.5 * (alpha @ alpha.mT - torch.cholesky_inverse(root))
            return weights
