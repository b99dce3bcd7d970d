"""Hyperparameters of krause-fig3: exact maximum likelihood from a panel of a day."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from torch import Tensor

from experiments.problems.time_of_day import time_of_day
from tvbo.kernels import ContextActionKernel
from tvbo.logs.likelihood import with_gradient
from tvbo.logs.maximize import RATE, LikelihoodMaximizer, at_rate

RATE_BOUNDS = (1e-5, 50.0)
"""Range of ρ = -ln(1 - ε) per hour, from negligible drift per day to fast drift per step."""

RATE_STARTS = (0.01, 0.1, 1.0)
"""Values of ρ at which the maximization starts; the best maximum is used."""

ACTION_LENGTHSCALE = 10.0
"""Initial length-scale in meters, a quarter of the laboratory."""


class KroneckerLikelihood:
    r"""Log likelihood of a panel under a product of kernels over actions and over times.

    With every action observed at every time, the covariance of the readings is
    :math:`K_T \otimes K_S + \sigma^2 I`. Two eigendecompositions, of the ``T x T`` and the
    ``n x n`` factor, give the likelihood and its gradient in :math:`O(T^3 + n^3 + T n (T + n))`.
    Derivatives are taken in the matrices, where they are smooth, not in eigenvectors, where
    equal eigenvalues would divide by zero.

    Args:
        values: ``T x n``.
        times: ``T``, in hours since a midnight.
        choices: ``n x d``.
        action_kernel: Kernel over the choices.
        context_kernel: Kernel over times of day as points of a circle; None is the constant 1.
    """

    def __init__(
        self,
        values: Tensor,
        times: Tensor,
        choices: Tensor,
        action_kernel: Kernel,
        context_kernel: Kernel | None,
    ):
        self.values = values
        self.lags = (times.unsqueeze(-1) - times).abs()
        self.contexts = time_of_day(times)
        self.choices = choices
        self.action_kernel = action_kernel
        self.context_kernel = context_kernel

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the differentiable log likelihood, and the generalized least squares mean.

        Args:
            rate: ρ per hour; the factor over times is multiplied with ``exp(-ρ |Δt| / 2)``.
            noise_variance: σ².
        """
        spatial = self.action_kernel(self.choices).to_dense()
        temporal = torch.exp(-0.5 * rate * self.lags)
        if self.context_kernel is not None:
            temporal = temporal * self.context_kernel(self.contexts).to_dense()
        with torch.no_grad():
            space, U = torch.linalg.eigh(spatial)
            time, V = torch.linalg.eigh(temporal)
            space, time = space.clamp_min(0), time.clamp_min(0)
            total = time.unsqueeze(-1) * space + noise_variance
            modes, ones = V.mT @ self.values @ U, torch.outer(V.sum(dim=0), U.sum(dim=0))
            mean = ((modes * ones / total).sum() / (ones.square() / total).sum()).item()
            error = modes - mean * ones
            value = -0.5 * (
                (error.square() / total).sum()
                + total.log().sum()
                + total.numel() * math.log(2 * math.pi)
            )
            weights = error / total
            # In the bases of the modes; half of "what the residuals say less what the model does".
            in_space = weights.mT @ (time.unsqueeze(-1) * weights)
            in_space -= torch.diag((time.unsqueeze(-1) / total).sum(dim=0))
            in_time = (weights * space) @ weights.mT - torch.diag((space / total).sum(dim=1))
            in_noise = 0.5 * (weights.square().sum() - (1 / total).sum())
        return with_gradient(
            value.item(),
            (spatial, 0.5 * U @ in_space @ U.mT),
            (temporal, 0.5 * V @ in_time @ V.mT),
            (noise_variance, in_noise),
        ), mean


@dataclass(frozen=True)
class Prior:
    """A fitted prior.

    Args:
        action_kernel: Scaled Matérn over positions.
        context_kernel: Matérn over times of day, identity, or None.
        forgetting_rate: ε per hour.
        noise_variance: σ², squared units of the reward.
        mean: Prior mean.
        log_likelihood: Log likelihood of the training readings.
    """

    action_kernel: Kernel
    context_kernel: Kernel | None
    forgetting_rate: float
    noise_variance: float
    mean: float
    log_likelihood: float

    def settings(self) -> dict[str, float | None]:
        """Return its hyperparameters by name."""
        context = self.context_kernel
        learned = isinstance(context, MaternKernel)
        return {
            "signal_variance": self.action_kernel.outputscale.item(),
            "lengthscale_metres": self.action_kernel.base_kernel.lengthscale.item(),
            "lengthscale_time_of_day": context.lengthscale.item() if learned else None,
            "forgetting_rate_per_hour": self.forgetting_rate,
            "noise_variance": self.noise_variance,
            "mean": self.mean,
            "log_likelihood": self.log_likelihood,
        }


def fit_prior(
    values: Tensor,
    times: Tensor,
    choices: Tensor,
    context_kernel: Kernel | None,
    drifts: bool,
) -> Prior:
    """Fit kernels, noise, mean and, if ``drifts``, ε by maximum marginal likelihood.

    Args:
        values: ``T x n`` readings.
        times: ``T``, in hours since a midnight.
        choices: ``n x 2`` positions, in meters.
        context_kernel: :func:`matern_of_the_day`, an ``IdentityKernel`` or None.
        drifts: Whether ε is learned; otherwise it is 0.
    """
    action_kernel = ScaleKernel(
        MaternKernel(nu=2.5, lengthscale_constraint=_positive()),
        outputscale_constraint=_positive(),
    ).double()
    action_kernel.base_kernel.lengthscale = ACTION_LENGTHSCALE
    action_kernel.outputscale = values.var()
    likelihood = KroneckerLikelihood(values, times, choices, action_kernel, context_kernel)
    both = action_kernel
    if context_kernel is not None:
        both = ContextActionKernel(
            action_kernel, context_kernel, action_features=[0, 1], context_features=[2, 3]
        )
    maximizer = LikelihoodMaximizer(likelihood, both, None, values.var().item(), RATE_BOUNDS)
    start = maximizer.start
    if drifts:
        optima = [maximizer.explore(at_rate(start, math.log(rate))) for rate in RATE_STARTS]
    else:
        optima = [maximizer.explore(at_rate(start, -math.inf), RATE)]
    best = max(optima, key=lambda optimum: optimum.log_likelihood)
    noise_variance, mean = maximizer.assign(best.theta)
    return Prior(
        action_kernel.requires_grad_(False),
        context_kernel and context_kernel.requires_grad_(False),
        -math.expm1(-math.exp(best.log_rate)),
        noise_variance,
        mean,
        best.log_likelihood,
    )


def matern_of_the_day() -> MaternKernel:
    """Return a Matérn kernel, ν = 2.5, over times of day as points of the unit circle."""
    return MaternKernel(nu=2.5, lengthscale_constraint=_positive()).double()


def no_kernel() -> None:
    """Return None: no kernel over the time of day."""


def _positive() -> Positive:
    """Return a constraint in log space, where the likelihood is closest to quadratic."""
    return Positive(transform=torch.exp, inv_transform=torch.log)
