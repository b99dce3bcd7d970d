"""The profile likelihood of the drift rate: maximum, confidence interval and test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv

from tvbo.logs.maximize import NOISE, RATE, LikelihoodMaximizer, Optimum
from tvbo.quadratic_model import Array, QuadraticModel

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
        interval: Rates ρ that the likelihood-ratio test does not reject, from 0 to infinity.
        points: ``(log ρ, log likelihood)`` of all points of the profile computed, by rate.
        model: Quadratic model at the maximum in the free parameters; None at a limit.
    """

    best: Optimum
    at_zero: Optimum
    at_infinity: Optimum
    interval: tuple[float, float]
    points: list[tuple[float, float]]
    model: QuadraticModel | None

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
        interval=(
            0.0 if lower == at_zero.log_rate else math.exp(lower),
            math.inf if upper == at_infinity.log_rate else math.exp(upper),
        ),
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
    model, slope = profile.model, np.zeros_like(theta)
    if model is not None and maximizer.learns_noise:
        model, slope[maximizer.free(NOISE)], _ = _without(model, NOISE)
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


def _without(model: QuadraticModel, place: int) -> tuple[QuadraticModel, Array, float]:
    """Return the model of the other parameters, their slopes by one, and its curvature so."""
    others = np.arange(len(model.held)) != place
    rest = QuadraticModel(model.hessian[np.ix_(others, others)], model.held[others])
    across = model.hessian[others, place]
    slope = -np.linalg.solve(rest.hessian, across)
    return rest, slope, float(model.hessian[place, place] + across @ slope)


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
    def others(self) -> tuple[QuadraticModel, Array, float] | None:
        """Model of the other parameters, their slopes by log ρ, and its curvature with these."""
        if self.model is None:
            return None
        rest, slope, curvature = _without(self.model, RATE)
        direction = np.zeros_like(self.best.theta)
        direction[self.maximizer.free(RATE)] = slope
        return rest, direction, curvature

    def at(self, log_rate: float) -> Optimum:
        """Return the point of the profile at a rate."""
        if log_rate not in self.points:
            self.on_point()
            near = min(self.points, key=lambda known: abs(known - log_rate))
            start = at_rate(self.points[near].theta, log_rate)
            if self.others is None:
                found = self.maximizer.explore(start, RATE)
            else:
                rest, direction, _ = self.others
                start += direction * (log_rate - near)
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
        step = FIRST_STEP
        if self.others is not None:
            step = min(step, depth / math.sqrt(self.others[2]))
        outer = inner + outwards * step
        while excess(outer) < 0:
            step *= 1.5
            inner, outer = outer, outer + outwards * step
        end: float = brentq(excess, inner, outer, xtol=ROOT_TOLERANCE)
        return end
