"""Maximum likelihood over the drift rate, the noise and the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""Gives the log likelihood and the mean, from the rate ρ and the noise variance."""

RAW_RANGE = 8.0
"""How far a raw kernel parameter may move from its start: a factor of 3,000 for one kept as a
logarithm. Farther out the likelihood is flat, and the covariance singular to rounding."""

AT_BOUND = 1e-3
"""Share of its range within which a parameter is said to be at an end of it."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, first and largest σ², as shares of the variance of the rewards."""


@dataclass(frozen=True)
class Optimum:
    """A maximum of the likelihood, free or at a given rate.

    Args:
        log_rate: Logarithm of ρ.
        nuisance: The other parameters, as the optimizer holds them.
        log_likelihood: Its value.
        converged: False if the optimizer stopped for another reason than a flat gradient.
        message: The optimizer's own words.
    """

    log_rate: float
    nuisance: np.ndarray
    log_likelihood: float
    converged: bool
    message: str


class LikelihoodMaximizer:
    """L-BFGS-B over one flat vector: log ρ, log σ² if it is learned, raw kernel parameters.

    Args:
        likelihood: The log likelihood; reads the kernel's parameters where they stand.
        covar_module: The kernel, whose parameters are moved.
        noise_variance: A fixed σ², or None to learn it.
        reward_variance: Variance of the rewards: a learned σ² starts at a tenth of it and stays
            between 1e-6 and 10 times it.
        rate_bounds: Range of ρ.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        covar_module: Kernel,
        noise_variance: float | None,
        reward_variance: float,
        rate_bounds: tuple[float, float],
    ):
        self.likelihood = likelihood
        self.noise_variance = noise_variance
        self.rate_bounds = tuple(math.log(rate) for rate in rate_bounds)
        self._parameters = []
        start, bounds = [], []
        if noise_variance is None:
            low, first, high = (math.log(share * reward_variance) for share in NOISE_SHARES)
            bounds.append((low, high))
            start.append(np.array([first]))
        self.nuisance_names = [] if noise_variance is not None else ["noise variance"]
        for name, parameter, constraint in covar_module.named_parameters_and_constraints():
            if not parameter.requires_grad:
                continue
            raw = parameter.detach().flatten().numpy().copy()
            start.append(raw)
            if constraint is None or constraint.enforced:
                bounds += [(x - RAW_RANGE, x + RAW_RANGE) for x in raw]
            else:
                box = (float(constraint.lower_bound), float(constraint.upper_bound))
                bounds += [box] * len(raw)
            self._parameters.append(parameter)
            self.nuisance_names += [name.replace("raw_", "")] * len(raw)
        self.start = np.concatenate(start) if start else np.empty(0)
        self.nuisance_bounds = bounds

    def maximize(self, log_rate: float, nuisance: np.ndarray) -> Optimum:
        """The nearest maximum over everything, from a start."""
        result = self._minimize(
            lambda theta: self._negative(theta[0], theta[1:]),
            np.concatenate([[log_rate], nuisance]),
            [self.rate_bounds, *self.nuisance_bounds],
        )
        return self._optimum(result, result.x[0], result.x[1:])

    def maximize_at(self, log_rate: float, nuisance: np.ndarray) -> Optimum:
        """The maximum over everything but the rate: one point of the profile."""
        if len(nuisance) == 0:
            value, _ = self._negative(log_rate, nuisance)
            return Optimum(log_rate, nuisance, -value, math.isfinite(value), "evaluated")

        def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._negative(log_rate, theta)
            return value, gradient[1:]

        result = self._minimize(negative, nuisance, self.nuisance_bounds)
        return self._optimum(result, log_rate, result.x)

    def at_bounds(self, optimum: Optimum) -> list[str]:
        """Names of the parameters, the rate apart, that stand at an end of their range."""
        return [
            name
            for name, x, (low, high) in zip(
                self.nuisance_names, optimum.nuisance, self.nuisance_bounds, strict=True
            )
            if min(x - low, high - x) <= AT_BOUND * (high - low)
        ]

    def place(self, optimum: Optimum) -> tuple[float, float]:
        """Set the kernel to an optimum; return the noise variance and the mean there."""
        noise = self._place(optimum.nuisance)
        with torch.no_grad():
            rate = torch.tensor(optimum.log_rate, dtype=torch.float64).exp()
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def _place(self, nuisance: np.ndarray) -> Tensor:
        values = torch.as_tensor(nuisance, dtype=torch.float64)
        if self.noise_variance is None:
            noise, values = values[0].exp().requires_grad_(), values[1:]
        else:
            noise = torch.tensor(self.noise_variance, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self._parameters:
                part, values = values[: parameter.numel()], values[parameter.numel() :]
                parameter.copy_(part.reshape(parameter.shape))
        return noise

    def _negative(self, log_rate: float, nuisance: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log likelihood and its gradient in the whole vector."""
        noise = self._place(nuisance)
        rate = torch.tensor(log_rate, dtype=torch.float64).exp().requires_grad_()
        inputs = [rate, *([noise] if noise.requires_grad else []), *self._parameters]
        try:
            value, _ = self.likelihood(rate, noise)
        except NotPSDError:
            return math.inf, np.zeros(1 + len(nuisance))
        gradient = torch.autograd.grad(value, inputs, allow_unused=True)
        flat = [
            (torch.zeros_like(x) if g is None else g).flatten()
            for g, x in zip(gradient, inputs, strict=True)
        ]
        # The chain rule of the logarithms of ρ and σ².
        flat[0] = flat[0] * rate.detach()
        if noise.requires_grad:
            flat[1] = flat[1] * noise.detach()
        return -value.item(), -torch.cat(flat).numpy()

    @staticmethod
    def _minimize(
        negative: Callable[[np.ndarray], tuple[float, np.ndarray]],
        start: np.ndarray,
        bounds: Sequence[tuple[float, float]],
    ) -> OptimizeResult:
        return minimize(
            negative,
            np.clip(start, *np.array(bounds).T),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-6},
        )

    @staticmethod
    def _optimum(result: OptimizeResult, log_rate: float, nuisance: np.ndarray) -> Optimum:
        # Status 2 is a line search that finds no further descent: at a maximum to rounding.
        gradient_is_flat = float(np.abs(result.jac).max()) < 1e-2 * max(1.0, abs(result.fun)) ** 0.5
        converged = math.isfinite(result.fun) and (result.status == 0 or gradient_is_flat)
        return Optimum(float(log_rate), nuisance, -float(result.fun), converged, result.message)
