"""Maximum likelihood: L-BFGS-B from any start, Newton's method near a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from tvbo.quadratic_model import CLOSE, Array, Function, QuadraticModel

Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""A function of the rate ρ and the noise variance that returns the log likelihood and the mean."""

RATE, NOISE = 0, 1
"""Places of log ρ and log σ² in the vector of parameters."""

TOLERANCE = 1e-9
"""Gain of a step, as a share of the log likelihood, at which L-BFGS-B stops. Where a likelihood is
flat in the drift rate it would stop too early with a larger one."""

RAW_RANGE = 8.0
"""Range of a raw kernel parameter on both sides of its start: a factor of 3,000 for a logarithm.
Beyond it the likelihood is flat and the covariance numerically singular."""

AT_BOUND = 1e-3
"""Distance from a bound, as a share of the range, at which a parameter is reported to be there."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, initial and largest σ², as shares of the variance of the outcomes."""


@dataclass(frozen=True)
class Optimum:
    """A maximum of the likelihood over all parameters, or over those that were not held.

    Args:
        theta: All parameters, beginning with log ρ and log σ².
        log_likelihood: Log likelihood at the maximum.
        converged: False if the optimizer stopped for another reason than a small gradient.
        message: The message of the optimizer.
    """

    theta: Array
    log_likelihood: float
    converged: bool
    message: str

    @property
    def log_rate(self) -> float:
        """Logarithm of ρ."""
        return float(self.theta[RATE])


class LikelihoodMaximizer:
    """Maximizes the likelihood over log ρ, log σ², and the raw kernel parameters that are learned.

    L-BFGS-B finds a maximum from any start; near one, Newton's method needs only a few steps.

    Args:
        likelihood: The log likelihood, which uses the present parameters of the kernel.
        covar_module: The kernel, whose parameters are modified; their present values are the start.
        noise_variance: A fixed σ², or None to learn it.
        outcome_variance: Variance of the outcomes. A learned σ² starts at a tenth of it, and is
            bounded by 1e-6 and 10 times it.
        rate_bounds: Range of ρ.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        covar_module: Kernel,
        noise_variance: float | None,
        outcome_variance: float,
        rate_bounds: tuple[float, float],
    ):
        self.likelihood, self.covar_module = likelihood, covar_module
        self.learns_noise = noise_variance is None
        self.kernel_parameters = [raw for raw in covar_module.parameters() if raw.requires_grad]
        shares = [share * outcome_variance for share in NOISE_SHARES]
        least, first, most = shares if noise_variance is None else [noise_variance] * 3
        self.names = ["rate", "noise variance"]
        low, start, high = (
            [np.log(pair)]
            for pair in ((rate_bounds[0], least), (1.0, first), (rate_bounds[1], most))
        )
        for name, parameter, constraint in covar_module.named_parameters_and_constraints():
            if parameter.requires_grad:
                raw = parameter.detach().flatten().numpy().copy()
                ends = [raw - RAW_RANGE, raw + RAW_RANGE]
                if constraint is not None and not constraint.enforced:
                    bounds = float(constraint.lower_bound), float(constraint.upper_bound)
                    ends = [np.full(len(raw), bound) for bound in bounds]
                low.append(ends[0])
                start.append(raw)
                high.append(ends[1])
                self.names += [name.replace("raw_", "")] * len(raw)
        self.start, self.low, self.high = (np.concatenate(parts) for parts in (start, low, high))
        self.rate_bounds = float(self.low[RATE]), float(self.high[RATE])
        # Cached, because a maximum is evaluated again for its refinement and its slope.
        self._negative = lru_cache(maxsize=16)(self._evaluate)

    def explore(self, start: Array, *held: int, max_steps: int = 500) -> Optimum:
        """Return a local maximum by L-BFGS-B from a start.

        Args:
            start: All parameters.
            *held: Places of those that are held.
            max_steps: Evaluations after which to stop.
        """
        free = self.free(*held)
        if not free.any() or max_steps == 0:
            return self._optimum(start, True, "evaluated")
        low, high = self.low[free], self.high[free]
        result = minimize(
            self._function(start, free),
            np.clip(start[free], low, high),
            jac=True,
            method="L-BFGS-B",
            bounds=self._bounds(free),
            options={"maxfun": max_steps, "ftol": TOLERANCE, "gtol": 1e-6},
        )
        # Status 2 means that a line search found no descent: a maximum up to rounding.
        gradient_is_flat = float(np.abs(result.jac).max()) < 1e-2 * max(1.0, abs(result.fun)) ** 0.5
        converged = result.status == 0 or gradient_is_flat
        return self._optimum(_inserted(start, free, result.x), converged, result.message)

    def refine(
        self,
        rough: Array,
        *held: int,
        model: QuadraticModel | None = None,
        close: float = CLOSE,
        max_steps: int = 500,
    ) -> tuple[Optimum, QuadraticModel | None]:
        """Return the maximum next to an approximate one, by Newton's method if that succeeds.

        Args:
            rough: All parameters.
            *held: Places of those that are held.
            model: A quadratic model in those that are free, near by, which is updated; None makes
                one by differences.
            close: Expected gain, in nats, below which to stop.
            max_steps: Evaluations after which to stop, where Newton's method fails.

        Returns:
            The maximum, and the model; None if the Hessian is not finite there, or zero.
        """
        free = self.free(*held)
        function, bounds = self._function(rough, free), self._bounds(free)
        by_differences = QuadraticModel.by_differences
        known = model or by_differences(function, bounds, rough[free])
        found = None if known is None else known.minimize(function, bounds, rough[free], close)
        if found is not None:
            return self._optimum(_inserted(rough, free, found), True, "Newton's method"), known
        optimum = self.explore(rough, *held, max_steps=max_steps)
        return optimum, model or by_differences(function, bounds, optimum.theta[free])

    def value(self, theta: Array) -> float:
        """Return the log likelihood."""
        return -self._negative(*theta)[0]

    def assign(self, theta: Array) -> tuple[float, float]:
        """Set the kernel to a vector; return the noise variance and the mean there."""
        rate, noise = self._set(theta)
        with torch.no_grad():
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def at_bounds(self, theta: Array) -> list[str]:
        """Return the names of parameters other than the rate at a bound, without duplicates."""
        # An unbounded range has no length; there the distance itself counts.
        span = np.where(np.isfinite(self.high - self.low), self.high - self.low, 1.0)
        near = np.minimum(theta - self.low, self.high - theta) <= AT_BOUND * span
        places = [i for i in np.flatnonzero(near & self.free(RATE)).tolist()]
        return list(dict.fromkeys(self.names[i] for i in places))

    def free(self, *held: int) -> NDArray[np.bool_]:
        """Return which parameters are neither held nor given."""
        free = np.ones(len(self.start), dtype=bool)
        free[[*held, *([] if self.learns_noise else [NOISE])]] = False
        return free

    def _function(self, theta: Array, free: NDArray[np.bool_]) -> Function:
        """Return the negative log likelihood of the free parameters, the others as in ``theta``."""

        def function(x: Array) -> tuple[float, Array]:
            value, gradient = self._negative(*_inserted(theta, free, x))
            return value, gradient[free]

        return function

    def _bounds(self, free: NDArray[np.bool_]) -> list[tuple[float, float]]:
        return list(zip(self.low[free], self.high[free], strict=True))

    def _set(self, theta: Array) -> tuple[Tensor, Tensor]:
        """Set the kernel to a vector; return ρ and σ²."""
        rate, noise, *rest = torch.as_tensor(theta, dtype=torch.float64).split(
            [1, 1, *(parameter.numel() for parameter in self.kernel_parameters)]
        )
        with torch.no_grad():
            for parameter, values in zip(self.kernel_parameters, rest, strict=True):
                parameter.copy_(values.reshape(parameter.shape))
        return rate[0].exp(), noise[0].exp()

    def _evaluate(self, *theta: float) -> tuple[float, Array]:
        """Return the negative log likelihood and its gradient."""
        rate, noise = self._set(np.array(theta))
        inputs = [rate.requires_grad_(), noise.requires_grad_(), *self.kernel_parameters]
        try:
            value, _ = self.likelihood(rate, noise)
        except NotPSDError:
            return math.inf, np.zeros(len(theta))
        gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
        # By the chain rule, because the vector holds the logarithms of ρ and σ².
        slopes = [gradients[0] * rate.detach(), gradients[1] * noise.detach(), *gradients[2:]]
        gradient: Array = -torch.cat([slope.flatten() for slope in slopes]).numpy()
        # Read-only, because it is cached.
        gradient.flags.writeable = False
        return -value.item(), gradient

    def _optimum(self, theta: Array, converged: bool, message: str) -> Optimum:
        value, _ = self._negative(*theta)
        return Optimum(theta, -value, converged and math.isfinite(value), message)


def _inserted(theta: Array, free: NDArray[np.bool_], values: Array) -> Array:
    """Return a vector with other values of the free parameters."""
    new = theta.copy()
    new[free] = values
    return new
