"""The exact log likelihood of a full panel, nearly linear in its length."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.likelihood.dense import weighted_mean
from tvbo.likelihood.log import Panel


class PanelLikelihood:
    r"""Log likelihood of every action at every time, by modes of the spatial covariance.

    With :math:`K = U \Lambda U^\top` over the ``n`` actions, the columns of :math:`Z = Y U` are
    independent. Mode ``i`` is a Markov process of stationary variance :math:`\lambda_i` and
    correlation :math:`e^{-\rho |\Delta t| / 2}`, seen through noise σ²: a scalar Kalman filter
    gives its likelihood in one pass. In all :math:`O(n^3 + n^2 T)` in place of
    :math:`O(n^3 T^3)`, and the same number.

    Args:
        panel: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """

    def __init__(self, panel: Panel, covar_module: Kernel, mean: float | None):
        self.covar_module = covar_module
        self.mean = mean
        self.panel = panel
        self.gaps = panel.times.diff()
        self.learns_kernel = any(p.requires_grad for p in covar_module.parameters())
        with torch.no_grad():
            self.fixed_eigen = torch.linalg.eigh(covar_module(panel.actions).to_dense())

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Log likelihood, differentiable, and the mean it was taken at.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar.
        """
        values = self.panel.values
        eigenvalues, modes = self.fixed_eigen
        if self.learns_kernel:
            covar = self.covar_module(self.panel.actions).to_dense()
            modes = torch.linalg.eigh(covar.detach()).eigenvectors
            rotated = modes.mT @ covar @ modes
            eigenvalues = rotated.diagonal()
        decay = torch.exp(-0.5 * rate * self.gaps)
        Z = values @ modes
        ones = torch.ones_like(values) @ modes
        mean = self.mean
        if mean is None:
            with torch.no_grad():
                innovations, variances = filter_modes(
                    torch.stack([Z, ones], dim=1), eigenvalues, decay, noise_variance
                )
                white = innovations / variances.sqrt().unsqueeze(1)
                mean = weighted_mean(white[:, 0], white[:, 1])
        residual = Z - mean * ones
        if self.learns_kernel:
            residual.requires_grad_(True)
        innovations, variances = filter_modes(
            residual.unsqueeze(1), eigenvalues, decay, noise_variance
        )
        log_likelihood = -0.5 * (
            (innovations.squeeze(1).square() / variances).sum()
            + variances.log().sum()
            + variances.numel() * math.log(2 * math.pi)
        )
        if self.learns_kernel and torch.is_grad_enabled():
            log_likelihood = log_likelihood + self._turning_modes(
                log_likelihood, residual, decay, rotated
            )
        return log_likelihood, mean

    @staticmethod
    def _turning_modes(
        log_likelihood: Tensor, residual: Tensor, decay: Tensor, rotated: Tensor
    ) -> Tensor:
        r"""A term of value zero that carries the gradient through the turning of the modes.

        Differentiating ``eigh`` divides by gaps between eigenvalues, which may be zero. The
        likelihood itself is smooth: with :math:`\alpha = \Sigma^{-1} r` by mode, its derivative in
        the off-diagonal of :math:`U^\top K U` is :math:`\tfrac12 \alpha_i^\top D \alpha_j`.
        """
        [minus_alpha] = torch.autograd.grad(log_likelihood, residual, retain_graph=True)
        with torch.no_grad():
            alpha = -minus_alpha
            past, future = alpha.clone(), alpha.clone()
            for k in range(1, len(alpha)):
                past[k] += decay[k - 1] * past[k - 1]
                future[-1 - k] += decay[-k] * future[-k]
            weights = 0.5 * alpha.mT @ (past + future - alpha)
            weights.fill_diagonal_(0.0)
        return (weights * (rotated - rotated.detach())).sum()


def filter_modes(
    Z: Tensor, eigenvalues: Tensor, decay: Tensor, noise_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Kalman filters of independent scalar Markov processes, side by side.

    Args:
        Z: ``T x b x n`` observations of ``n`` processes, ``b`` series of each.
        eigenvalues: ``n`` stationary variances.
        decay: ``T - 1`` correlations between successive times.
        noise_variance: σ², a scalar.

    Returns:
        Innovations ``T x b x n`` and their variances ``T x n``.
    """
    eigenvalues = eigenvalues.clamp_min(0.0)
    mean, variance = torch.zeros_like(Z[0]), eigenvalues
    innovations, variances = [], []
    for k in range(len(Z)):
        if k > 0:
            mean = decay[k - 1] * mean
            variance = eigenvalues + decay[k - 1].square() * (variance - eigenvalues)
        total = variance + noise_variance
        innovation = Z[k] - mean
        gain = variance / total
        innovations.append(innovation)
        variances.append(total)
        mean = mean + gain * innovation
        variance = gain * noise_variance
    return torch.stack(innovations), torch.stack(variances)
