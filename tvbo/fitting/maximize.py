"""Maximum likelihood over the drift rate, the noise and the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from linear_operator.utils.errors import NotPSDError
from scipy.optimize import minimize
from torch import Tensor

from tvbo.fitting.nuisance import NuisanceParameters
from tvbo.fitting.quadratic import Function, Quadratic

Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""Gives the log likelihood and the mean, from the rate ρ and the noise variance."""

TOLERANCE = 1e-12
"""Gain of a step, as a share of the likelihood, at which L-BFGS-B stops. Likelihoods of drifting
logs have long flat stretches, at each of which a looser search would stop."""

PROFILE = 1e-5
"""Nats by which a point of the profile may lie too low: it moves an end of the interval by less
than a ten-thousandth of its distance from the maximum."""


@dataclass(frozen=True)
class Optimum:
    """A maximum of the likelihood, free or at a given rate.

    Args:
        log_rate: Logarithm of ρ.
        nuisance: The other parameters, as the optimizer holds them.
        log_likelihood: Its value.
        slope: Its derivative in log ρ, which is that of the profile.
        converged: False if the optimizer stopped for another reason than a flat gradient.
        message: The optimizer's own words.
    """

    log_rate: float
    nuisance: np.ndarray
    log_likelihood: float
    slope: float
    converged: bool
    message: str


class LikelihoodMaximizer:
    """Maximizes over one flat vector: log ρ, and the nuisance parameters.

    L-BFGS-B finds a maximum from afar; near one, Newton's method takes a few steps.

    Args:
        likelihood: The log likelihood; reads the kernel's parameters where they stand.
        nuisance: The parameters beside the rate.
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
        self.rate_bounds = tuple(math.log(rate) for rate in rate_bounds)
        # The last points are asked for again: to refine a maximum, and for the slope there.
        self._negative = lru_cache(maxsize=16)(self._evaluate)

    def explore(self, log_rate: float, nuisance: np.ndarray) -> Optimum:
        """The nearest maximum over everything, from a start however far."""
        return self._search(None, np.concatenate([[log_rate], nuisance]))

    def explore_at(self, log_rate: float, nuisance: np.ndarray) -> Optimum:
        """The nearest maximum over everything but the rate."""
        return self._search(log_rate, nuisance)

    def refine(self, rough: Optimum) -> tuple[Optimum, Quadratic | None]:
        """The maximum over everything next to a rough one.

        Also the quadratic model in the whole vector; None if the likelihood has none there.
        """
        theta = np.concatenate([[rough.log_rate], rough.nuisance])
        optimum, model = self._refine(None, theta)
        if model is None:
            theta = np.concatenate([[optimum.log_rate], optimum.nuisance])
            model = Quadratic.by_differences(*self._function(None), theta)
        return optimum, model

    def refine_at(self, rough: Optimum) -> Optimum:
        """The maximum over everything but the rate next to a rough one."""
        return self._refine(rough.log_rate, rough.nuisance)[0]

    def maximize_at(
        self, log_rate: float, nuisance: np.ndarray, model: Quadratic | None
    ) -> Optimum:
        """The maximum over everything but the rate: one point of the profile.

        Args:
            log_rate: Logarithm of ρ.
            nuisance: The start.
            model: A quadratic model in the nuisance parameters near the start; it is brought up to
                date. None if there is none.
        """
        if model is not None:
            function, bounds = self._function(log_rate)
            found = model.minimize(function, bounds, nuisance, PROFILE)
            if found is not None:
                return self._optimum(log_rate, found, True, "Newton's method")
        return self._search(log_rate, nuisance)

    def value(self, log_rate: float, nuisance: np.ndarray) -> float:
        """The log likelihood."""
        return -self._negative(log_rate, *nuisance)[0]

    def place(self, optimum: Optimum) -> tuple[float, float]:
        """Set the kernel to an optimum; return the noise variance and the mean there."""
        noise = self.nuisance.place(optimum.nuisance)
        with torch.no_grad():
            rate = torch.tensor(optimum.log_rate, dtype=torch.float64).exp()
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def _function(self, log_rate: float | None) -> tuple[Function, list[tuple[float, float]]]:
        """What is minimized, and in what bounds: of the whole vector, or of all but the rate."""
        if log_rate is None:
            everything = [self.rate_bounds, *self.nuisance.bounds]
            return lambda theta: self._negative(*theta), everything

        def at_rate(nuisance: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._negative(log_rate, *nuisance)
            return value, gradient[1:]

        return at_rate, self.nuisance.bounds

    def _evaluate(self, log_rate: float, *nuisance: float) -> tuple[float, np.ndarray]:
        """Negative log likelihood and its gradient in the whole vector."""
        noise = self.nuisance.place(np.array(nuisance))
        rate = torch.tensor(log_rate, dtype=torch.float64).exp().requires_grad_()
        inputs = [rate, *([noise] if noise.requires_grad else []), *self.nuisance.kernel_parameters]
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
        gradient = -torch.cat(flat).numpy()
        # It is kept, and asked for again.
        gradient.flags.writeable = False
        return -value.item(), gradient

    def _search(self, log_rate: float | None, start: np.ndarray) -> Optimum:
        """L-BFGS-B."""
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
        # Status 2 is a line search that finds no further descent: at a maximum to rounding.
        gradient_is_flat = float(np.abs(result.jac).max()) < 1e-2 * max(1.0, abs(result.fun)) ** 0.5
        converged = result.status == 0 or gradient_is_flat
        return self._optimum(log_rate, result.x, converged, result.message)

    def _refine(
        self, log_rate: float | None, rough: np.ndarray
    ) -> tuple[Optimum, Quadratic | None]:
        """Newton's method with a Hessian from differences; L-BFGS-B where it does not reach."""
        function, bounds = self._function(log_rate)
        model = Quadratic.by_differences(function, bounds, rough)
        found = None if model is None else model.minimize(function, bounds, rough)
        if found is None:
            return self._search(log_rate, rough), None
        return self._optimum(log_rate, found, True, "Newton's method"), model

    def _optimum(
        self, log_rate: float | None, theta: np.ndarray, converged: bool, message: str
    ) -> Optimum:
        if log_rate is None:
            log_rate, theta = float(theta[0]), theta[1:]
        value, gradient = self._negative(log_rate, *theta)
        return Optimum(
            log_rate, theta, -value, -gradient[0], converged and math.isfinite(value), message
        )
