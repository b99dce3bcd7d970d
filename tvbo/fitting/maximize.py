"""Maximum likelihood estimates of the drift rate, the noise variance and the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import Parameter

from tvbo.fitting.quadratic import Array, Function, QuadraticModel

RAW_RANGE = 8.0
"""Range of a raw kernel parameter on both sides of its start: a factor of 3,000 for a logarithm.
Beyond it the likelihood is flat and the covariance numerically singular."""

AT_BOUND = 1e-3
"""Distance from a bound, as a share of the range, at which a parameter is reported to be there."""

NOISE_SHARES = (1e-6, 0.1, 10.0)
"""Smallest, initial and largest σ², as shares of the variance of the outcomes."""


class NuisanceParameters:
    """log σ² if it is learned, then the raw kernel parameters that require gradients.

    Args:
        covar_module: The kernel, whose parameters are modified; their present values are the start.
        noise_variance: A fixed σ², or None to learn it.
        outcome_variance: Variance of the outcomes. A learned σ² starts at a tenth of it, and is
            bounded by 1e-6 and 10 times it.
    """

    def __init__(self, covar_module: Kernel, noise_variance: float | None, outcome_variance: float):
        self.noise_variance = noise_variance
        self.kernel_parameters: list[Parameter] = []
        self.names: list[str] = []
        self.bounds: list[tuple[float, float]] = []
        start = []
        if noise_variance is None:
            low, first, high = (math.log(share * outcome_variance) for share in NOISE_SHARES)
            self.names.append("noise variance")
            start.append(np.array([first]))
            self.bounds.append((low, high))
        for name, parameter, constraint in covar_module.named_parameters_and_constraints():
            if not parameter.requires_grad:
                continue
            raw = parameter.detach().flatten().numpy().copy()
            start.append(raw)
            if constraint is None or constraint.enforced:
                self.bounds += [(x - RAW_RANGE, x + RAW_RANGE) for x in raw]
            else:
                box = (float(constraint.lower_bound), float(constraint.upper_bound))
                self.bounds += [box] * len(raw)
            self.kernel_parameters.append(parameter)
            self.names += [name.replace("raw_", "")] * len(raw)
        self.start = np.concatenate(start) if start else np.empty(0)

    def with_fixed_noise(self, noise_variance: float) -> NuisanceParameters:
        """Return the same parameters with the same bounds, but a fixed noise variance."""
        held = copy(self)
        held.noise_variance = noise_variance
        if self.noise_variance is None:
            held.names, held.start, held.bounds = self.names[1:], self.start[1:], self.bounds[1:]
        return held

    def assign(self, values: Array) -> Tensor:
        """Set the parameters of the kernel; return σ², with a gradient if it is learned."""
        rest = torch.as_tensor(values, dtype=torch.float64)
        if self.noise_variance is None:
            noise, rest = rest[0].exp().requires_grad_(), rest[1:]
        else:
            noise = torch.tensor(self.noise_variance, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.kernel_parameters:
                part, rest = rest[: parameter.numel()], rest[parameter.numel() :]
                parameter.copy_(part.reshape(parameter.shape))
        return noise

    def at_bounds(self, values: Array) -> list[str]:
        """Return the names of parameters at a bound, without duplicates."""
        names = [
            name
            for name, x, (low, high) in zip(self.names, values, self.bounds, strict=True)
            # An unbounded range has no length; there the distance itself counts.
            if min(x - low, high - x) <= AT_BOUND * (high - low if high - low < math.inf else 1.0)
        ]
        return list(dict.fromkeys(names))


Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""A function of the rate ρ and the noise variance that returns the log likelihood and the mean."""

TOLERANCE = 1e-12
"""Gain of a step, as a share of the log likelihood, at which L-BFGS-B stops. The likelihood of the
drift rate has long flat regions, in which it would stop with a larger tolerance."""

PROFILE = 1e-5
"""Error of a point of the profile, in nats, that is accepted: it moves an end of the interval by
less than a ten-thousandth of its distance from the maximum."""


@dataclass(frozen=True)
class Optimum:
    """A maximum of the likelihood over all parameters, or over all but the rate.

    Args:
        log_rate: Logarithm of ρ.
        nuisance: The other parameters, as a flat vector.
        log_likelihood: Log likelihood at the maximum.
        slope: Derivative with respect to log ρ, which is also that of the profile.
        converged: False if the optimizer stopped for another reason than a small gradient.
        message: The message of the optimizer.
    """

    log_rate: float
    nuisance: Array
    log_likelihood: float
    slope: float
    converged: bool
    message: str


class LikelihoodMaximizer:
    """Maximizes the likelihood over one flat vector: log ρ, and the nuisance parameters.

    L-BFGS-B finds a maximum from any start; near one, Newton's method needs only a few steps.

    Args:
        likelihood: The log likelihood, which uses the present parameters of the kernel.
        nuisance: The parameters other than the rate.
        rate_bounds: Range of ρ.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        nuisance: NuisanceParameters,
        rate_bounds: tuple[float, float],
    ):
        self.likelihood = likelihood
        self.nuisance = nuisance
        low, high = rate_bounds
        self.rate_bounds = (math.log(low), math.log(high))
        # Cached, because a maximum is evaluated again for its refinement and its slope.
        self._negative = lru_cache(maxsize=16)(self._evaluate)

    def explore(self, log_rate: float, nuisance: Array) -> Optimum:
        """Return the local maximum over all parameters by L-BFGS-B from a start."""
        return self._search(None, np.concatenate([[log_rate], nuisance]))

    def explore_at(self, log_rate: float, nuisance: Array) -> Optimum:
        """Return the local maximum over all parameters but the rate by L-BFGS-B from a start."""
        return self._search(log_rate, nuisance)

    def refine(self, rough: Optimum) -> tuple[Optimum, QuadraticModel | None]:
        """Return the maximum over all parameters next to an approximate one, and a quadratic model.

        The model is in the whole vector; None if the Hessian is not finite there, or zero.
        """
        theta = np.concatenate([[rough.log_rate], rough.nuisance])
        optimum, model = self._refine(None, theta)
        if model is None:
            theta = np.concatenate([[optimum.log_rate], optimum.nuisance])
            model = QuadraticModel.by_differences(*self._function(None), theta)
        return optimum, model

    def refine_at(self, rough: Optimum) -> Optimum:
        """Return the maximum over all parameters but the rate next to an approximate one."""
        return self._refine(rough.log_rate, rough.nuisance)[0]

    def maximize_at(
        self, log_rate: float, nuisance: Array, model: QuadraticModel | None
    ) -> Optimum:
        """Return the maximum over all parameters but the rate: one point of the profile.

        Args:
            log_rate: Logarithm of ρ.
            nuisance: The start.
            model: A quadratic model in the nuisance parameters near the start, which is updated;
                None if there is none.
        """
        if model is not None:
            function, bounds = self._function(log_rate)
            found = model.minimize(function, bounds, nuisance, PROFILE)
            if found is not None:
                return self._optimum(log_rate, found, True, "Newton's method")
        return self._search(log_rate, nuisance)

    def value(self, log_rate: float, nuisance: Array) -> float:
        """Return the log likelihood."""
        return -self._negative(log_rate, *nuisance)[0]

    def assign(self, optimum: Optimum) -> tuple[float, float]:
        """Set the kernel to an optimum; return the noise variance and the mean there."""
        noise = self.nuisance.assign(optimum.nuisance)
        with torch.no_grad():
            rate = torch.tensor(optimum.log_rate, dtype=torch.float64).exp()
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def _function(self, log_rate: float | None) -> tuple[Function, list[tuple[float, float]]]:
        """Return the negative log likelihood, of all but the rate if it is given, and bounds."""
        if log_rate is None:
            everything = [self.rate_bounds, *self.nuisance.bounds]
            return lambda theta: self._negative(*theta), everything

        def at_rate(nuisance: Array) -> tuple[float, Array]:
            value, gradient = self._negative(log_rate, *nuisance)
            return value, gradient[1:]

        return at_rate, self.nuisance.bounds

    def _evaluate(self, log_rate: float, *nuisance: float) -> tuple[float, Array]:
        """Return the negative log likelihood and its gradient with respect to the whole vector."""
        noise = self.nuisance.assign(np.array(nuisance))
        rate = torch.tensor(log_rate, dtype=torch.float64).exp().requires_grad_()
        inputs = [rate, *([noise] if noise.requires_grad else []), *self.nuisance.kernel_parameters]
        try:
            value, _ = self.likelihood(rate, noise)
        except NotPSDError:
            return math.inf, np.zeros(1 + len(nuisance))
        gradients = torch.autograd.grad(value, inputs, allow_unused=True)
        flat = [
            (torch.zeros_like(x) if g is None else g).flatten()
            for g, x in zip(gradients, inputs, strict=True)
        ]
        # By the chain rule, because the vector holds the logarithms of ρ and σ².
        flat[0] = flat[0] * rate.detach()
        if noise.requires_grad:
            flat[1] = flat[1] * noise.detach()
        gradient: Array = -torch.cat(flat).numpy()
        # Read-only, because it is cached.
        gradient.flags.writeable = False
        return -value.item(), gradient

    def _search(self, log_rate: float | None, start: Array) -> Optimum:
        """Return a local maximum by L-BFGS-B, over all parameters if the rate is None."""
        function, bounds = self._function(log_rate)
        if len(start) == 0:
            return self._optimum(log_rate, start, True, "evaluated")
        result = minimize(
            function,
            np.clip(start, *np.array(bounds).T),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": TOLERANCE, "gtol": 1e-6},
        )
        # Status 2 means that a line search found no descent: a maximum up to rounding.
        gradient_is_flat = float(np.abs(result.jac).max()) < 1e-2 * max(1.0, abs(result.fun)) ** 0.5
        converged = result.status == 0 or gradient_is_flat
        return self._optimum(log_rate, result.x, converged, result.message)

    def _refine(
        self, log_rate: float | None, rough: Array
    ) -> tuple[Optimum, QuadraticModel | None]:
        """Return the maximum by Newton's method, or by L-BFGS-B if that fails; and the model."""
        function, bounds = self._function(log_rate)
        model = QuadraticModel.by_differences(function, bounds, rough)
        found = None if model is None else model.minimize(function, bounds, rough)
        if found is None:
            return self._search(log_rate, rough), None
        return self._optimum(log_rate, found, True, "Newton's method"), model

    def _optimum(
        self, log_rate: float | None, theta: Array, converged: bool, message: str
    ) -> Optimum:
        """Return the optimum at a vector, which begins with log ρ if the rate is None."""
        if log_rate is None:
            log_rate, theta = float(theta[0]), theta[1:]
        value, gradient = self._negative(log_rate, *theta)
        return Optimum(
            log_rate, theta, -value, -gradient[0], converged and math.isfinite(value), message
        )
