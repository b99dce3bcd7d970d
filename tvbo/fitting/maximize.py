"""Maximum likelihood: L-BFGS-B from any start, Newton's method near a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from tvbo.fitting.parameters import Array, NuisanceParameters, Optimum

Likelihood = Callable[[Tensor, Tensor], tuple[Tensor, float]]
"""A function of the rate ρ and the noise variance that returns the log likelihood and the mean."""

TOLERANCE = 1e-12
"""Gain of a step, as a share of the log likelihood, at which L-BFGS-B stops. The likelihood of the
drift rate has long flat regions, in which it would stop with a larger tolerance."""

PROFILE = 1e-5
"""Error of a point of the profile, in nats, that is accepted: it moves an end of the interval by
less than a ten-thousandth of its distance from the maximum."""

Function = Callable[[Array], tuple[float, Array]]
"""A function that returns its value and its gradient."""

STEP = 1e-3
"""Step of the differences that give a Hessian; parameters are logarithms or of the order of one."""

CLOSE = 1e-8
"""Gain, in nats, that the quadratic model must expect less than at a minimum."""

SHORT = 1e-2
"""Length of a step, in every parameter, below which a minimum is reached: where a function is flat,
as in the logarithm of a very small noise variance, a long step may gain more than expected."""

FLATTEST = 1e-8
"""Smallest curvature of a model, as a share of the largest."""

MAX_STEPS, HALVINGS = 20, 5
"""Maximum number of steps, each at most one in every parameter, and of halvings of a step that
increases the function. If they are exceeded, the start was not near a minimum."""


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


class QuadraticModel:
    """The Hessian of a function, updated by BFGS with every step.

    Args:
        hessian: ``p x p``.
        held: Which of the ``p`` parameters were at a bound that a descent would cross; the model
            has no information on them.
    """

    def __init__(self, hessian: Array, held: NDArray[np.bool_]):
        self.hessian = hessian
        self.held = held

    @classmethod
    def by_differences(
        cls, function: Function, bounds: Sequence[tuple[float, float]], x: Array
    ) -> QuadraticModel | None:
        """Build a model at ``x`` from ``p + 1`` gradients; None if it is not finite, or zero.

        Negative curvatures are replaced by their absolute values, so that steps still decrease the
        function. A parameter at a bound has no second derivatives with the others.

        Args:
            function: The function to be minimized.
            bounds: Lower and upper bound of each parameter.
            x: The point.
        """
        low, high = np.array(bounds, dtype=float).reshape(-1, 2).T
        _, gradient = function(x)
        hessian = np.empty((len(x), len(x)))
        for i in range(len(x)):
            step = STEP if x[i] + STEP <= high[i] else -STEP
            moved = x.copy()
            moved[i] += step
            hessian[i] = (function(moved)[1] - gradient) / step
        hessian = 0.5 * (hessian + hessian.T)
        held = _held(x, gradient, low, high)
        hessian[held] = hessian[:, held] = 0.0
        hessian[held, held] = 1.0
        if not np.isfinite(hessian).all() or (len(x) > 0 and not hessian.any()):
            return None
        curvatures, directions = np.linalg.eigh(hessian)
        curvatures = np.abs(curvatures)
        curvatures = np.maximum(curvatures, FLATTEST * curvatures.max(initial=0.0))
        return cls((directions * curvatures) @ directions.T, held)

    def minimize(
        self,
        function: Function,
        bounds: Sequence[tuple[float, float]],
        x: Array,
        close: float = CLOSE,
    ) -> Array | None:
        """Return the minimum next to ``x``; None if Newton's steps do not reach it.

        Args:
            function: The function to be minimized.
            bounds: Lower and upper bound of each parameter.
            x: The start.
            close: Expected gain below which to stop.
        """
        low, high = np.array(bounds, dtype=float).reshape(-1, 2).T
        x = np.clip(x, low, high)
        value, gradient = function(x)
        for _ in range(MAX_STEPS):
            if not np.isfinite(value):
                return None
            free = ~_held(x, gradient, low, high)
            if (free & self.held).any():
                return None
            newton = np.zeros_like(x)
            newton[free] = -np.linalg.solve(self.hessian[np.ix_(free, free)], gradient[free])
            if -0.5 * (gradient @ newton) < close and np.abs(newton).max(initial=0.0) < SHORT:
                return x
            newton /= max(1.0, np.abs(newton).max())
            for _ in range(HALVINGS):
                new = np.clip(x + newton, low, high)
                new_value, new_gradient = function(new)
                if new_value < value:
                    break
                newton *= 0.5
            else:
                return None
            self._update(new - x, new_gradient - gradient)
            x, value, gradient = new, new_value, new_gradient
        return None

    def _update(self, step: Array, change: Array) -> None:
        """Update the Hessian by BFGS, unless the function is not convex along the step."""
        along = step @ change
        if along > 0:
            turned = self.hessian @ step
            self.hessian = (
                self.hessian
                + np.outer(change, change) / along
                - np.outer(turned, turned) / (step @ turned)
            )


def _held(x: Array, gradient: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Return which parameters are at a bound that a descent would cross."""
    return ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
