"""The profile of the likelihood over the drift rate: its maximum, an interval, a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from tvbo.fitting.maximize import LikelihoodMaximizer, Optimum
from tvbo.fitting.profile_search import ProfileWalk

IMPROVEMENT = 1e-3
"""A point of the profile this much above the maximum, in nats, shows that it was none."""

BEYOND = math.log(1e9)
"""How far outside the bounds of log ρ the limits of no drift and of no memory are taken."""

LIMITS = ("no drift", "no memory")
MAXIMUM = "maximum"
INTERVAL = "interval"


@dataclass(frozen=True)
class Profile:
    """What the likelihood says of the rate.

    Args:
        best: The maximum.
        at_zero: The maximum with a function that never changes, ρ = 0.
        at_infinity: The maximum with functions that share nothing between times.
        interval: Rates ρ that the likelihood-ratio test does not reject, from 0 to infinity.
        points: ``(log ρ, log likelihood)`` of every point of the profile computed, by rate.
        failed_starts: Messages of starts that did not end at a maximum.
    """

    best: Optimum
    at_zero: Optimum
    at_infinity: Optimum
    interval: tuple[float, float]
    points: list[tuple[float, float]]
    failed_starts: list[str]


def steps(num_starts: int) -> list[str]:
    """What :func:`profile_rate` does, one thing after the other, in words."""
    starts = [f"start {i + 1} of {num_starts}" for i in range(num_starts)]
    return [*starts, *LIMITS, MAXIMUM, INTERVAL]


def profile_rate(
    maximizer: LikelihoodMaximizer,
    num_starts: int,
    level: float,
    on_step: Callable[[str], None],
    subsample: LikelihoodMaximizer | None = None,
) -> Profile:
    """Maximize from several starts, then walk down the profile to both ends of the interval.

    Args:
        maximizer: Of the likelihood at hand.
        num_starts: Starts, spread evenly in log ρ over the range that the log can tell apart.
        level: Confidence of the interval.
        on_step: Told what is being done, each of :func:`steps` in turn and the last of them for
            each point of the profile, for a progress bar.
        subsample: Maximizer of the likelihood of a part of the log, with the same parameters, which
            looks from all the starts; the maxima that it finds are starts for the whole. None if
            the whole is quick enough.
    """
    low, high = maximizer.rate_bounds
    subsample = subsample or maximizer
    drop = 0.5 * chi2.ppf(level, df=1)
    starts = np.linspace(low, high, num_starts + 2)[1:-1]
    optima = []
    for step, start in zip(steps(num_starts), starts, strict=False):
        on_step(step)
        optima.append(subsample.explore(start, subsample.nuisance.start))
    failed = [optimum.message for optimum in optima if not optimum.converged]
    on_step(LIMITS[0])
    at_zero = maximizer.refine_at(_best_of(subsample, low - BEYOND, optima))
    on_step(LIMITS[1])
    # Not refined: no more is reported of it than on which side of a threshold it lies.
    rough = _best_of(subsample, high + BEYOND, optima)
    at_infinity = maximizer.explore_at(rough.log_rate, rough.nuisance)
    on_step(MAXIMUM)
    top = max(optima, key=lambda optimum: maximizer.value(optimum.log_rate, optimum.nuisance))
    best, model = maximizer.refine(top)
    if at_zero.log_likelihood > best.log_likelihood:
        best, model = at_zero, None
    if at_infinity.log_likelihood > best.log_likelihood - drop:
        at_infinity = maximizer.refine_at(at_infinity)
        if at_infinity.log_likelihood > best.log_likelihood:
            best, model = at_infinity, None

    points = {o.log_rate: o for o in (at_zero, best, at_infinity)}
    while True:
        walk = ProfileWalk(maximizer, best, model, points, lambda: on_step(INTERVAL))
        lower = _end(walk, at_zero, drop, -1.0)
        upper = _end(walk, at_infinity, drop, 1.0)
        higher = max(points.values(), key=lambda optimum: optimum.log_likelihood)
        if higher.log_likelihood <= best.log_likelihood + IMPROVEMENT:
            break
        # The walk came upon a better maximum than any start: begin again from there.
        best, model = maximizer.refine(higher)
        if best.log_likelihood < higher.log_likelihood:
            best, model = higher, None
        points[best.log_rate] = best
        at_zero = _better(at_zero, maximizer.maximize_at(at_zero.log_rate, best.nuisance, None))
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
    """The maximum likelihood rates ρ with the noise held, each fit begun where the last ended.

    Args:
        maximizer: Of the likelihood at hand, whether it learns the noise or holds it.
        best: Its maximum, where the first fit begins.
        noise_variances: Values to hold σ² at, each next to the one before.

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
            maximizer.nuisance.holding(noise_variance),
            (math.exp(low), math.exp(high)),
        )
        # A maximum without drift, or without memory, lies outside the bounds.
        start = replace(best, log_rate=min(max(log_rate, low), high), nuisance=nuisance)
        found, _ = held.refine(start)
        if not math.isfinite(found.log_likelihood):
            break
        log_rate, nuisance = found.log_rate, found.nuisance
        rates.append(math.exp(log_rate))
    return rates


def _end(walk: ProfileWalk, limit: Optimum, drop: float, direction: float) -> float:
    """Where the profile crosses the threshold on the way from the best rate to a limit."""
    best = walk.best
    threshold = best.log_likelihood - drop
    if limit.log_likelihood >= threshold:
        return limit.log_rate
    low, high = walk.maximizer.rate_bounds
    inner = min(max(best.log_rate, low), high)
    # A maximum at a limit may be sharper than the bounds: go on towards it.
    while inner != best.log_rate and walk.at(inner).log_likelihood <= threshold:
        inner += min(1.0, max(-1.0, best.log_rate - inner))
    return walk.crossing(inner, drop, direction)


def _better(first: Optimum, second: Optimum) -> Optimum:
    return first if first.log_likelihood >= second.log_likelihood else second


def _best_of(maximizer: LikelihoodMaximizer, log_rate: float, optima: list[Optimum]) -> Optimum:
    """The maximum at one rate, from the first start and from the best optimum found so far."""
    starts = [max(optima, key=lambda optimum: optimum.log_likelihood).nuisance]
    if len(starts[0]) > 0:
        starts.append(maximizer.nuisance.start)
    return max(
        (maximizer.explore_at(log_rate, start) for start in starts),
        key=lambda optimum: optimum.log_likelihood,
    )
