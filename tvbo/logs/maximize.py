"""The likelihood of a log at its maximum, and its profile over the rate: interval and test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from time import process_time
from timeit import repeat

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import gammaincinv
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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
        # Name, lower bound, start and upper bound of each.
        ranges = [
            ("rate", *np.log([rate_bounds[0], 1.0, rate_bounds[1]])),
            ("noise variance", *np.log([least, first, most])),
        ]
        for name, parameter, constraint in covar_module.named_parameters_and_constraints():
            for raw in parameter.flatten().tolist() if parameter.requires_grad else []:
                low, high = raw - RAW_RANGE, raw + RAW_RANGE
                if constraint is not None and not constraint.enforced:
                    low, high = float(constraint.lower_bound), float(constraint.upper_bound)
                ranges.append((name.replace("raw_", ""), low, raw, high))
        self.names, *numbers = zip(*ranges, strict=True)
        lowest, self.start, highest = map(np.array, numbers)
        self.bounds = np.stack([lowest, highest], axis=-1)
        self.rate_bounds = float(lowest[RATE]), float(highest[RATE])
        # Cached, because a maximum is evaluated again for its refinement and its slope.
        self._negative = lru_cache(maxsize=16)(self._evaluate)

    def starts(self, count: int) -> list[Array]:
        """Return starts spread evenly in log ρ over its bounds."""
        rates = np.linspace(*self.rate_bounds, count + 2)[1:-1]
        return [at_rate(self.start, rate) for rate in rates]

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
        result = minimize(
            self._function(start, free),
            np.clip(start, *self.bounds.T)[free],
            jac=True,
            method="L-BFGS-B",
            bounds=self.bounds[free],
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
        function, bounds = self._function(rough, free), self.bounds[free].tolist()
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

    def seconds(self) -> float:
        """Return the seconds of CPU that an evaluation takes, with its gradient."""
        theta = at_rate(self.start, float(np.mean(self.rate_bounds)))
        tries = repeat(lambda: self._evaluate(*theta), timer=process_time, number=1, repeat=2)
        return min(tries)

    def assign(self, theta: Array) -> tuple[float, float]:
        """Set the kernel to a vector; return the noise variance and the mean there."""
        rate, noise = self._set(theta).exp()
        with torch.no_grad():
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def at_bounds(self, theta: Array) -> list[str]:
        """Return the names of parameters other than the rate at a bound, without duplicates."""
        low, high = self.bounds.T
        # An unbounded range has no length; there the distance itself counts.
        span = np.where(np.isfinite(high - low), high - low, 1.0)
        near = np.minimum(theta - low, high - theta) <= AT_BOUND * span
        places = np.flatnonzero(near & self.free(RATE))
        return list(dict.fromkeys(self.names[place] for place in places))

    def free(self, *held: int) -> NDArray[np.bool_]:
        """Return which parameters have a range, and are not held."""
        free: NDArray[np.bool_] = self.bounds[:, 0] < self.bounds[:, 1]
        free[list(held)] = False
        return free

    def _function(self, theta: Array, free: NDArray[np.bool_]) -> Function:
        """Return the negative log likelihood of the free parameters, the others as in ``theta``."""

        def function(x: Array) -> tuple[float, Array]:
            value, gradient = self._negative(*_inserted(theta, free, x))
            return value, gradient[free]

        return function

    def _set(self, theta: Sequence[float] | Array) -> Tensor:
        """Set the kernel to a vector; return log ρ and log σ²."""
        values = torch.tensor(theta, dtype=torch.float64)
        vector_to_parameters(values[2:], self.kernel_parameters)
        return values[:2]

    def _evaluate(self, *theta: float) -> tuple[float, Array]:
        """Return the negative log likelihood and its gradient."""
        logarithms = self._set(theta).requires_grad_()
        inputs = [logarithms, *self.kernel_parameters]
        try:
            value, _ = self.likelihood(*logarithms.exp())
        except NotPSDError:
            return math.inf, np.zeros(len(theta))
        gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
        gradient: Array = -parameters_to_vector(gradients).numpy()
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


IMPROVEMENT = 1e-3
"""Excess of a point of the profile over the maximum, in nats, that counts as a better maximum."""

PROFILE = 1e-4
"""Error of a point of the profile, in nats, that is accepted: it moves an end of the interval by
less than a ten-thousandth of its distance from the maximum."""

START_STEPS = 20
"""Evaluations from each start, after which the best of them is refined."""

LIMIT_STEPS = 30
"""Evaluations for the limits of no drift and no memory, with which the maximum is compared."""

OUT_OF_REACH = 10.0
"""Nats, and multiple of what the last steps to the maximum gained, that no search gains there."""

BEYOND = math.log(1e9)
"""Distance from the bounds of log ρ at which the limits of no drift and no memory are evaluated."""

STEPS = "outliers", "starts", "maximum", "no drift, no memory", "interval"
OUTLIERS, STARTS, MAXIMUM, LIMITS, INTERVAL = STEPS
"""Steps of a fit, in order."""


ROOT_TOLERANCE = 1e-3
"""Tolerance of log ρ at the ends of an interval: a thousandth of ρ."""

FIRST_STEP = 0.25
"""First step in log ρ outwards from the maximum, at most; each later one is a half longer."""


class Profile:
    r"""The profile likelihood of the rate: its maximum, and both ends of the interval.

    The maximum is the best of several starts. Near it the other parameters are linear in log ρ, so
    a line gives the start of each point, and :math:`z = \sqrt{2 (\ell_{max} - \ell(\rho))}` is
    proportional to the distance in log ρ, so that few points find where the profile is lower by a
    given amount.

    Args:
        maximizer: Maximizer of the likelihood.
        num_starts: Number of starts, spread evenly in log ρ over the bounds of the maximizer.
        level: Confidence of the interval.
        on_step: Called with the name of each step, and with the last one for each point of the
            profile, for a progress bar.
        subsample: Maximizer of the likelihood of a subsample of the log, with the same parameters,
            used for all starts; the best of its maxima is the start for the whole log. None uses
            the whole log.
        memory_parameters: Degrees of freedom of the test of no memory, at which the interval may
            be open: the number of parameters, ρ among them, that then make no difference.

    Attributes:
        best: The maximum.
        at_zero: The maximum for a constant function, ρ = 0.
        at_infinity: The maximum for independent functions at different times, ρ = ∞.
        points: All points of the profile computed, by log ρ.
        interval: Rates ρ that the likelihood-ratio test does not reject, from 0 to infinity.
    """

    def __init__(
        self,
        maximizer: LikelihoodMaximizer,
        num_starts: int,
        level: float,
        on_step: Callable[[str], None],
        subsample: LikelihoodMaximizer | None = None,
        memory_parameters: int = 1,
    ):
        self.maximizer, self._on_step = maximizer, on_step
        low, high = maximizer.rate_bounds
        subsample = subsample or maximizer
        # Quantiles of χ² by its incomplete gamma function; importing scipy.stats takes long.
        drop, drop_at_infinity = (gammaincinv(0.5 * df, level) for df in (1, memory_parameters))
        on_step(STARTS)
        optima = [
            subsample.explore(each, max_steps=START_STEPS) for each in subsample.starts(num_starts)
        ]

        def at_limit(log_rate: float) -> Array:
            thetas = [at_rate(each.theta, log_rate) for each in optima]
            thetas.append(at_rate(subsample.start, log_rate))
            return subsample.explore(max(thetas, key=subsample.value), RATE).theta

        on_step(MAXIMUM)
        rough = max((each.theta for each in optima), key=maximizer.value)
        self.best, self._model = maximizer.refine(rough)
        gain = self.best.log_likelihood - maximizer.value(rough)
        on_step(LIMITS)
        self.at_zero = maximizer.explore(at_limit(low - BEYOND), RATE, max_steps=LIMIT_STEPS)
        theta = at_limit(high + BEYOND)
        # It is only compared with a threshold, which it may be far below.
        reach = maximizer.value(theta) + OUT_OF_REACH * (1 + gain)
        steps_there = LIMIT_STEPS if reach > self.best.log_likelihood - drop_at_infinity else 0
        self.at_infinity = maximizer.explore(theta, RATE, max_steps=steps_there)
        for limit in (self.at_zero, self.at_infinity):
            if limit.log_likelihood > self.best.log_likelihood:
                self.best, self._model = limit, None

        self.points = {o.log_rate: o for o in (self.at_zero, self.best, self.at_infinity)}
        while True:
            self._others = self._held(RATE)
            lower = self._end(self.at_zero, drop, -1.0)
            upper = self.at_infinity.log_rate
            if self.at_infinity.log_likelihood < self.best.log_likelihood - drop_at_infinity:
                upper = self._end(self.at_infinity, drop, 1.0)
            higher = max(self.points.values(), key=attrgetter("log_likelihood"))
            if higher.log_likelihood <= self.best.log_likelihood + IMPROVEMENT:
                break
            # The search found a better maximum than any start: repeat it from there.
            self.best, self._model = maximizer.refine(higher.theta)
            if self.best.log_likelihood < higher.log_likelihood:
                self.best, self._model = higher, None
            again = maximizer.explore(at_rate(self.best.theta, self.at_zero.log_rate), RATE)
            self.at_zero = max(self.at_zero, again, key=attrgetter("log_likelihood"))
            self.points |= {o.log_rate: o for o in (self.best, self.at_zero)}
        self.interval = self.rate(lower), self.rate(upper)

    def rate(self, log_rate: float) -> float:
        """Return ρ, exactly zero and infinite at the two limits."""
        if log_rate == self.at_zero.log_rate:
            return 0.0
        return math.inf if log_rate == self.at_infinity.log_rate else math.exp(log_rate)

    def rates_by_noise(self, factors: Sequence[float]) -> list[tuple[float, float]]:
        """Return the maximum likelihood rates for fixed noise variances, pairs ``(σ², ρ)`` by σ².

        Args:
            factors: What σ² at the maximum is multiplied with and divided by, from small to large.
                Each fit starts from the one before, the first from the maximum, up to the first
                at which the likelihood is not finite.
        """
        maximizer, log_noise = self.maximizer, self.best.theta[NOISE]
        pairs = [(math.exp(log_noise), self.rate(self.best.log_rate))]
        for sign in (1.0, -1.0):
            theta = self.best.theta
            model, slope, _ = self._held(NOISE)
            for at_noise in log_noise + sign * np.log(factors):
                # The maximum may be at a limit, outside the bounds.
                start = at_rate(theta, np.clip(theta[RATE], *maximizer.rate_bounds))
                start += slope * (at_noise - start[NOISE])
                start[NOISE] = at_noise
                found, _ = maximizer.refine(start, NOISE, model=model, max_steps=LIMIT_STEPS)
                if not math.isfinite(found.log_likelihood):
                    break
                theta = found.theta
                pairs.append((math.exp(at_noise), math.exp(found.log_rate)))
        return sorted(pairs)

    def _held(self, place: int) -> tuple[QuadraticModel | None, Array, float]:
        """Return the model without a parameter, slopes of all others by it, and its curvature."""
        model, free = self._model, self.maximizer.free()
        direction = np.zeros(len(free))
        if model is None or not free[place]:
            return model, direction, 0.0
        others = np.flatnonzero(free) != place
        rest = QuadraticModel(model.hessian[np.ix_(others, others)], model.held[others])
        across = model.hessian[others, place]
        direction[self.maximizer.free(place)] = slope = -np.linalg.solve(rest.hessian, across)
        return rest, direction, float(model.hessian[place, place] + across @ slope)

    def _at(self, log_rate: float) -> Optimum:
        """Return the point of the profile at a rate."""
        if log_rate not in self.points:
            self._on_step(INTERVAL)
            near = min(self.points, key=lambda known: abs(known - log_rate))
            rest, direction, _ = self._others
            start = at_rate(self.points[near].theta, log_rate) + direction * (log_rate - near)
            if rest is None:
                found = self.maximizer.explore(start, RATE)
            else:
                found, _ = self.maximizer.refine(start, RATE, model=rest, close=PROFILE)
            self.points[log_rate] = found
        return self.points[log_rate]

    def _end(self, limit: Optimum, drop: float, outwards: float) -> float:
        """Return the log ρ between maximum and limit at which the profile crosses the threshold.

        Args:
            limit: The point at the limit of no drift or no memory.
            drop: Difference of the threshold from the maximum, in nats.
            outwards: 1 for higher rates, -1 for lower ones.
        """
        best, depth = self.best, math.sqrt(2 * drop)
        if limit.log_likelihood >= best.log_likelihood - drop:
            return limit.log_rate

        def excess(log_rate: float) -> float:
            fallen = best.log_likelihood - self._at(log_rate).log_likelihood
            return math.sqrt(max(0.0, 2 * fallen)) - depth

        inner = float(np.clip(best.log_rate, *self.maximizer.rate_bounds))
        # If the maximum is at a limit, the interval may end between the bounds and that limit.
        while inner != best.log_rate and excess(inner) >= 0:
            inner += min(1.0, max(-1.0, best.log_rate - inner))
        step = min(FIRST_STEP, depth / math.sqrt(self._others[2] or 1e-9))
        outer = inner + outwards * step
        while excess(outer) < 0:
            step *= 1.5
            inner, outer = outer, outer + outwards * step
        return brentq(excess, inner, outer, xtol=ROOT_TOLERANCE)


def at_rate(theta: Array, log_rate: float) -> Array:
    """Return a vector of parameters with another log ρ."""
    return np.concatenate([[log_rate], theta[1:]])
