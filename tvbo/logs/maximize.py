"""Maximum likelihood: L-BFGS-B from any start, Newton's method near a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from linear_operator.utils.errors import NotPSDError
from scipy.optimize import minimize
from torch import Tensor

from tvbo.fit.quadratic_model import Array, Function, QuadraticModel
from tvbo.logs.parameters import NuisanceParameters, Optimum

Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""A function of the rate ρ and the noise variance that returns the log likelihood and the mean."""

TOLERANCE = 1e-12
"""Gain of a step, as a share of the log likelihood, at which L-BFGS-B stops. The likelihood of the
drift rate has long flat regions, in which it would stop with a larger tolerance."""

PROFILE = 1e-5
"""Error of a point of the profile, in nats, that is accepted: it moves an end of the interval by
less than a ten-thousandth of its distance from the maximum."""


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

    def refine(self, rough: Optimum) -> tuple[Optimum, QuadraticModel | None]:
        """Return the maximum over all parameters next to an approximate one, and a quadratic model.

        The model is in the whole vector; None if the Hessian is not finite there, or zero.
        """
        optimum, model = self._refine(None, rough.vector)
        if model is None:
            model = QuadraticModel.by_differences(*self._function(None), optimum.vector)
        return optimum, model

    def refine_at(self, rough: Optimum) -> Optimum:
        """Return the maximum over all parameters but the rate next to an approximate one."""
        return self._refine(rough.log_rate, rough.nuisance)[0]

    def maximize_at(
        self, log_rate: float, nuisance: Array, model: QuadraticModel | None = None
    ) -> Optimum:
        """Return the maximum over all parameters but the rate: one point of the profile.

        Args:
            log_rate: Logarithm of ρ.
            nuisance: The start.
            model: A quadratic model in the nuisance parameters near the start, which is updated;
                None searches from any start by L-BFGS-B.
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
