"""The profile likelihood of the drift rate: maximum, confidence interval and test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaincinv

from tvbo.logs.maximize import LikelihoodMaximizer, QuadraticModel
from tvbo.logs.parameters import Array, Optimum

IMPROVEMENT = 1e-3
"""Excess of a point of the profile over the maximum, in nats, that counts as a better maximum."""

BEYOND = math.log(1e9)
"""Distance from the bounds of log ρ at which the limits of no drift and no memory are evaluated."""

OUTLIERS = "outliers"
LIMITS = ("no drift", "no memory")
MAXIMUM = "maximum"
INTERVAL = "interval"


@dataclass(frozen=True)
class Profile:
    """The profile likelihood of the rate.

    Args:
        best: The maximum.
        at_zero: The maximum for a constant function, ρ = 0.
        at_infinity: The maximum for independent functions at different times, ρ = ∞.
        interval: Rates ρ that the likelihood-ratio test does not reject, from 0 to infinity.
        points: ``(log ρ, log likelihood)`` of all points of the profile computed, by rate.
        failed_starts: Messages of starts that did not end at a maximum.
    """

    best: Optimum
    at_zero: Optimum
    at_infinity: Optimum
    interval: tuple[float, float]
    points: list[tuple[float, float]]
    failed_starts: list[str]

    def rate(self, log_rate: float) -> float:
        """Return ρ, exactly zero and infinite at the two limits."""
        if log_rate == self.at_zero.log_rate:
            return 0.0
        return math.inf if log_rate == self.at_infinity.log_rate else math.exp(log_rate)


def steps(num_starts: int) -> list[str]:
    """Return the names of the steps of a fit, in order: outliers, and :func:`profile_rate`."""
    starts = [f"start {i + 1} of {num_starts}" for i in range(num_starts)]
    return [OUTLIERS, *starts, *LIMITS, MAXIMUM, INTERVAL]


def explore_starts(
    maximizer: LikelihoodMaximizer, num_starts: int, on_step: Callable[[str], None]
) -> list[Optimum]:
    """Return the maxima from starts spread evenly in log ρ over the bounds of the maximizer."""
    rates = np.linspace(*maximizer.rate_bounds, num_starts + 2)[1:-1]
    optima = []
    for step, rate in zip(steps(num_starts)[1:], rates, strict=False):
        on_step(step)
        optima.append(maximizer.explore(rate, maximizer.nuisance.start))
    return optima


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
        on_step: Called with the name of each step in turn, and with the last one for each point of
            the profile, for a progress bar.
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
    optima = explore_starts(subsample, num_starts, on_step)
    failed = [optimum.message for optimum in optima if not optimum.converged]
    on_step(LIMITS[0])
    at_zero = maximizer.refine_at(_best_of(subsample, low - BEYOND, optima))
    on_step(LIMITS[1])
    # Not refined, because it is only compared with a threshold.
    rough = _best_of(subsample, high + BEYOND, optima)
    at_infinity = maximizer.maximize_at(rough.log_rate, rough.nuisance)
    on_step(MAXIMUM)
    top = max(optima, key=lambda optimum: maximizer.value(optimum.log_rate, optimum.nuisance))
    best, model = maximizer.refine(top)
    if at_zero.log_likelihood > best.log_likelihood:
        best, model = at_zero, None
    if at_infinity.log_likelihood > best.log_likelihood - drop_at_infinity:
        at_infinity = maximizer.refine_at(at_infinity)
        if at_infinity.log_likelihood > best.log_likelihood:
            best, model = at_infinity, None

    points = {o.log_rate: o for o in (at_zero, best, at_infinity)}
    while True:
        search = ProfileSearch(maximizer, best, model, points, lambda: on_step(INTERVAL))
        lower = _end(search, at_zero, drop, -1.0)
        upper = at_infinity.log_rate
        if at_infinity.log_likelihood < best.log_likelihood - drop_at_infinity:
            upper = _end(search, at_infinity, drop, 1.0)
        higher = max(points.values(), key=lambda optimum: optimum.log_likelihood)
        if higher.log_likelihood <= best.log_likelihood + IMPROVEMENT:
            break
        # The search found a better maximum than any start: repeat it from there.
        best, model = maximizer.refine(higher)
        if best.log_likelihood < higher.log_likelihood:
            best, model = higher, None
        points[best.log_rate] = best
        again = maximizer.maximize_at(at_zero.log_rate, best.nuisance)
        at_zero = max(at_zero, again, key=lambda optimum: optimum.log_likelihood)
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
        failed_starts=failed,
    )


def rates_at_noise(
    maximizer: LikelihoodMaximizer, best: Optimum, noise_variances: Sequence[float]
) -> list[float]:
    """Return the maximum likelihood rates ρ for fixed noise variances.

    Args:
        maximizer: Maximizer of the likelihood, with a learned or a fixed noise variance.
        best: Its maximum, the start of the first fit; each fit is the start of the next.
        noise_variances: Values of σ², each close to the previous one.

    Returns:
        A rate for each value, up to the first at which the likelihood is not finite.
    """
    low, high = maximizer.rate_bounds
    learned = maximizer.nuisance.noise_variance is None
    log_rate, nuisance = best.log_rate, best.nuisance[1:] if learned else best.nuisance
    rates = []
    for noise_variance in noise_variances:
        held = LikelihoodMaximizer(
            maximizer.likelihood,
            maximizer.nuisance.with_fixed_noise(noise_variance),
            (math.exp(low), math.exp(high)),
        )
        # The maximum may be at a limit, outside the bounds.
        start = replace(best, log_rate=min(max(log_rate, low), high), nuisance=nuisance)
        found, _ = held.refine(start)
        if not math.isfinite(found.log_likelihood):
            break
        log_rate, nuisance = found.log_rate, found.nuisance
        rates.append(math.exp(log_rate))
    return rates


def _end(search: ProfileSearch, limit: Optimum, drop: float, direction: float) -> float:
    """Return the log ρ between maximum and limit at which the profile crosses the threshold."""
    best = search.best
    threshold = best.log_likelihood - drop
    if limit.log_likelihood >= threshold:
        return limit.log_rate
    low, high = search.maximizer.rate_bounds
    inner = min(max(best.log_rate, low), high)
    # If the maximum is at a limit, the interval may end between the bounds and that limit.
    while inner != best.log_rate and search.at(inner).log_likelihood <= threshold:
        inner += min(1.0, max(-1.0, best.log_rate - inner))
    return search.crossing(inner, drop, direction)


def _best_of(maximizer: LikelihoodMaximizer, log_rate: float, optima: list[Optimum]) -> Optimum:
    """Return the maximum at one rate, from the first start and from the best of the optima."""
    starts = [max(optima, key=lambda optimum: optimum.log_likelihood).nuisance]
    if len(starts[0]) > 0:
        starts.append(maximizer.nuisance.start)
    return max(
        (maximizer.maximize_at(log_rate, start) for start in starts),
        key=lambda optimum: optimum.log_likelihood,
    )


ROOT_TOLERANCE = 1e-4
"""Tolerance of log ρ at the ends of an interval: a ten-thousandth of ρ."""

FIRST_STEP = 0.25
"""First step in log ρ outwards from the maximum, at most; each later one is up to a half longer."""


class ProfileSearch:
    r"""Points and crossings of the profile likelihood around a maximum.

    Near the maximum the other parameters are linear in log ρ, and
    :math:`z = \sqrt{2 (\ell_{max} - \ell(\rho))}` is proportional to the distance in log ρ. So a
    line gives the start of each point, and Newton's method on ``z`` finds with few points where the
    profile is lower by a given amount.

    Args:
        maximizer: Maximizer of the likelihood.
        best: The maximum.
        model: Quadratic model of the likelihood there, in the whole vector, or None.
        points: Known points by log ρ, to which computed ones are added.
        on_point: Called before each point is computed.
    """

    def __init__(
        self,
        maximizer: LikelihoodMaximizer,
        best: Optimum,
        model: QuadraticModel | None,
        points: dict[float, Optimum],
        on_point: Callable[[], None],
    ):
        self.maximizer, self.best, self.points = maximizer, best, points
        self.on_point = on_point
        self.model, self.slope, self.curvature = None, None, None
        if model is not None:
            self.model = QuadraticModel(model.hessian[1:, 1:], model.held[1:])
            self.slope = -np.linalg.solve(self.model.hessian, model.hessian[1:, 0])
            self.curvature = model.hessian[0, 0] + model.hessian[0, 1:] @ self.slope

    def at(self, log_rate: float) -> Optimum:
        """Return the point of the profile at a rate."""
        if log_rate not in self.points:
            self.on_point()
            self.points[log_rate] = self.maximizer.maximize_at(
                log_rate, self._start(log_rate), self.model
            )
        return self.points[log_rate]

    def _start(self, log_rate: float) -> Array:
        """Return the other parameters that are expected at a rate."""
        near = sorted(self.points, key=lambda known: abs(known - log_rate))[:2]
        first: Array = self.points[near[0]].nuisance
        if self.slope is not None and near[0] == self.best.log_rate:
            extrapolated: Array = first + self.slope * (log_rate - near[0])
            return extrapolated
        reach = abs(near[1] - near[0])
        if self.slope is None or reach < ROOT_TOLERANCE or abs(near[0] - log_rate) > reach:
            return first
        share = (log_rate - near[0]) / (near[1] - near[0])
        return first + share * (self.points[near[1]].nuisance - first)

    def crossing(self, inner: float, drop: float, direction: float) -> float:
        """Return the first log ρ outwards at which the profile is ``drop`` below the maximum.

        Args:
            inner: A log ρ at which it is higher.
            drop: Difference in nats.
            direction: 1 for higher rates, -1 for lower ones.
        """
        depth, step, outer = math.sqrt(2 * drop), FIRST_STEP, None
        guess = inner + direction * step
        if self.curvature is not None:
            guess = inner + direction * min(step, depth / math.sqrt(self.curvature))
        while True:
            point = self.at(guess)
            fallen = math.sqrt(max(0.0, 2 * (self.best.log_likelihood - point.log_likelihood)))
            if fallen < depth:
                if abs(guess - inner) > 0.99 * step:
                    step *= 1.5
                inner = guess
            else:
                outer = guess
            if outer is not None and abs(outer - inner) < ROOT_TOLERANCE:
                return guess
            # d z / d log ρ = -slope / z; Newton's method applies if z increases outwards.
            rise = -point.slope * direction
            newton = math.inf
            if fallen > 0 and rise > 0:
                newton = guess + direction * (depth - fallen) * fallen / rise
                if abs(newton - guess) < ROOT_TOLERANCE:
                    return newton
            ends = (inner, inner + direction * step if outer is None else outer)
            if min(ends) < newton < max(ends):
                guess = newton
            else:
                guess = ends[1] if outer is None else 0.5 * (inner + outer)
