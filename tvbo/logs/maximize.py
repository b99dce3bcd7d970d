"""The likelihood of a log at its maximum, and its profile over the rate: interval and test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NotPSDError
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import gammaincinv
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

    def assign(self, theta: Array) -> tuple[float, float]:
        """Set the kernel to a vector; return the noise variance and the mean there."""
        rate, noise = self._set(theta)
        with torch.no_grad():
            _, mean = self.likelihood(rate, noise)
        return noise.item(), mean

    def at_bounds(self, theta: Array) -> list[str]:
        """Return the names of parameters other than the rate at a bound, without duplicates."""
        low, high = self.bounds.T
        # An unbounded range has no length; there the distance itself counts.
        span = np.where(np.isfinite(high - low), high - low, 1.0)
        near = np.minimum(theta - low, high - theta) <= AT_BOUND * span
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

STEPS = OUTLIERS, STARTS, MAXIMUM, LIMITS, INTERVAL = (
    "outliers",
    "starts",
    "maximum",
    "no drift, no memory",
    "interval",
)
"""Steps of a fit, in order."""


@dataclass(frozen=True)
class Profile:
    """The profile likelihood of the rate.

    Args:
        best: The maximum.
        at_zero: The maximum for a constant function, ρ = 0.
        at_infinity: The maximum for independent functions at different times, ρ = ∞.
        log_interval: Logarithms of the rates that the likelihood-ratio test does not reject.
        points: ``(log ρ, log likelihood)`` of all points of the profile computed, by rate.
        model: Quadratic model at the maximum in the free parameters; None at a limit.
    """

    best: Optimum
    at_zero: Optimum
    at_infinity: Optimum
    log_interval: tuple[float, float]
    points: list[tuple[float, float]]
    model: QuadraticModel | None

    @property
    def interval(self) -> tuple[float, float]:
        """Rates ρ that the likelihood-ratio test does not reject, from 0 to infinity."""
        return self.rate(self.log_interval[0]), self.rate(self.log_interval[1])

    def rate(self, log_rate: float) -> float:
        """Return ρ, exactly zero and infinite at the two limits."""
        if log_rate == self.at_zero.log_rate:
            return 0.0
        return math.inf if log_rate == self.at_infinity.log_rate else math.exp(log_rate)


def explore_starts(maximizer: LikelihoodMaximizer, num_starts: int) -> list[Optimum]:
    """Return rough maxima from starts spread evenly in log ρ over the bounds of the maximizer."""
    rates = np.linspace(*maximizer.rate_bounds, num_starts + 2)[1:-1]
    starts = [at_rate(maximizer.start, rate) for rate in rates]
    return [maximizer.explore(start, max_steps=START_STEPS) for start in starts]


def at_rate(theta: Array, log_rate: float) -> Array:
    """Return a vector of parameters with another log ρ."""
    return np.concatenate([[log_rate], theta[1:]])


def profile_rate(
    maximizer: LikelihoodMaximizer,
    num_starts: int,
    level: float,
    on_step: Callable[[str], None],
    subsample: LikelihoodMaximizer | None = None,
    memory_parameters: int = 1,
) -> Profile:
    """Maximize the likelihood from several starts, and find both ends of the interval.

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
    """
    low, high = maximizer.rate_bounds
    subsample = subsample or maximizer
    # Quantiles of χ² by its incomplete gamma function; importing scipy.stats takes long.
    drop, drop_at_infinity = (gammaincinv(0.5 * df, level) for df in (1, memory_parameters))
    on_step(STARTS)
    optima = explore_starts(subsample, num_starts)

    def at_limit(log_rate: float) -> Array:
        thetas = [at_rate(each.theta, log_rate) for each in optima]
        thetas.append(at_rate(subsample.start, log_rate))
        return subsample.explore(max(thetas, key=subsample.value), RATE).theta

    on_step(MAXIMUM)
    rough = max((each.theta for each in optima), key=maximizer.value)
    best, model = maximizer.refine(rough)
    gain = best.log_likelihood - maximizer.value(rough)
    on_step(LIMITS)
    at_zero = maximizer.explore(at_limit(low - BEYOND), RATE, max_steps=LIMIT_STEPS)
    theta = at_limit(high + BEYOND)
    # It is only compared with a threshold, which it may be far below.
    reach = maximizer.value(theta) + OUT_OF_REACH * (1 + gain)
    steps_there = LIMIT_STEPS if reach > best.log_likelihood - drop_at_infinity else 0
    at_infinity = maximizer.explore(theta, RATE, max_steps=steps_there)
    for limit in (at_zero, at_infinity):
        if limit.log_likelihood > best.log_likelihood:
            best, model = limit, None

    points = {o.log_rate: o for o in (at_zero, best, at_infinity)}
    while True:
        search = _ProfileSearch(maximizer, best, model, points, lambda: on_step(INTERVAL))
        lower = search.end(at_zero, drop, -1.0)
        upper = at_infinity.log_rate
        if at_infinity.log_likelihood < best.log_likelihood - drop_at_infinity:
            upper = search.end(at_infinity, drop, 1.0)
        higher = max(points.values(), key=_height)
        if higher.log_likelihood <= best.log_likelihood + IMPROVEMENT:
            break
        # The search found a better maximum than any start: repeat it from there.
        best, model = maximizer.refine(higher.theta)
        if best.log_likelihood < higher.log_likelihood:
            best, model = higher, None
        points[best.log_rate] = best
        again = maximizer.explore(at_rate(best.theta, at_zero.log_rate), RATE)
        at_zero = max(at_zero, again, key=_height)
        points[at_zero.log_rate] = at_zero
    return Profile(
        best=best,
        at_zero=at_zero,
        at_infinity=at_infinity,
        log_interval=(lower, upper),
        points=sorted((rate, o.log_likelihood) for rate, o in points.items()),
        model=model,
    )


def rates_at_noise(
    maximizer: LikelihoodMaximizer, profile: Profile, noise_variances: Sequence[float]
) -> list[float]:
    """Return the maximum likelihood rates ρ for fixed noise variances.

    Args:
        maximizer: Maximizer of the likelihood, with a learned or a fixed noise variance.
        profile: Its profile. Each fit starts from the one before, the first from the maximum.
        noise_variances: Values of σ², each close to the previous one.

    Returns:
        A rate for each value, up to the first at which the likelihood is not finite.
    """
    theta, rates = profile.best.theta, []
    model, slope, _ = _held(maximizer, profile.model, NOISE)
    for noise_variance in noise_variances:
        # The maximum may be at a limit, outside the bounds.
        start = at_rate(theta, np.clip(theta[RATE], *maximizer.rate_bounds))
        start += slope * (math.log(noise_variance) - start[NOISE])
        start[NOISE] = math.log(noise_variance)
        found, _ = maximizer.refine(start, NOISE, model=model, max_steps=LIMIT_STEPS)
        if not math.isfinite(found.log_likelihood):
            break
        theta = found.theta
        rates.append(math.exp(found.log_rate))
    return rates


def _held(
    maximizer: LikelihoodMaximizer, model: QuadraticModel | None, place: int
) -> tuple[QuadraticModel | None, Array, float]:
    """Return the model without a parameter, slopes of all others by it, and its curvature so."""
    direction, free = np.zeros_like(maximizer.start), maximizer.free()
    if model is None or not free[place]:
        return model, direction, 0.0
    others = np.flatnonzero(free) != place
    rest = QuadraticModel(model.hessian[np.ix_(others, others)], model.held[others])
    across = model.hessian[others, place]
    direction[maximizer.free(place)] = slope = -np.linalg.solve(rest.hessian, across)
    return rest, direction, float(model.hessian[place, place] + across @ slope)


def _height(optimum: Optimum) -> float:
    return optimum.log_likelihood


ROOT_TOLERANCE = 1e-3
"""Tolerance of log ρ at the ends of an interval: a thousandth of ρ."""

FIRST_STEP = 0.25
"""First step in log ρ outwards from the maximum, at most; each later one is a half longer."""


@dataclass
class _ProfileSearch:
    r"""Points and crossings of the profile likelihood around a maximum.

    Near the maximum the other parameters are linear in log ρ, so a line gives the start of each
    point, and :math:`z = \sqrt{2 (\ell_{max} - \ell(\rho))}` is proportional to the distance in
    log ρ, so that few points find where the profile is lower by a given amount.

    Args:
        maximizer: Maximizer of the likelihood.
        best: The maximum.
        model: Quadratic model of the likelihood there, in the free parameters, or None.
        points: Known points by log ρ, to which computed ones are added.
        on_point: Called before each point is computed.
    """

    maximizer: LikelihoodMaximizer
    best: Optimum
    model: QuadraticModel | None
    points: dict[float, Optimum]
    on_point: Callable[[], None]

    @cached_property
    def others(self) -> tuple[QuadraticModel | None, Array, float]:
        """Model of the other parameters, their slopes by log ρ, and its curvature with these."""
        return _held(self.maximizer, self.model, RATE)

    def at(self, log_rate: float) -> Optimum:
        """Return the point of the profile at a rate."""
        if log_rate not in self.points:
            self.on_point()
            near = min(self.points, key=lambda known: abs(known - log_rate))
            rest, direction, _ = self.others
            start = at_rate(self.points[near].theta, log_rate) + direction * (log_rate - near)
            if rest is None:
                found = self.maximizer.explore(start, RATE)
            else:
                found, _ = self.maximizer.refine(start, RATE, model=rest, close=PROFILE)
            self.points[log_rate] = found
        return self.points[log_rate]

    def end(self, limit: Optimum, drop: float, outwards: float) -> float:
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
            fallen = best.log_likelihood - self.at(log_rate).log_likelihood
            return math.sqrt(max(0.0, 2 * fallen)) - depth

        low, high = self.maximizer.rate_bounds
        inner = min(max(best.log_rate, low), high)
        # If the maximum is at a limit, the interval may end between the bounds and that limit.
        while inner != best.log_rate and excess(inner) >= 0:
            inner += min(1.0, max(-1.0, best.log_rate - inner))
        step = min(FIRST_STEP, depth / math.sqrt(self.others[2] or 1e-9))
        outer = inner + outwards * step
        while excess(outer) < 0:
            step *= 1.5
            inner, outer = outer, outer + outwards * step
        end: float = brentq(excess, inner, outer, xtol=ROOT_TOLERANCE)
        return end
