"""The profile of the likelihood over the drift rate: its maximum, an interval, a test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2

from tvbo.likelihood.maximize import LikelihoodMaximizer, Optimum

ROOT_TOLERANCE = 1e-4
"""Of log ρ at the ends of an interval: a ten-thousandth of ρ."""

IMPROVEMENT = 1e-3
"""A point of the profile this much above the maximum, in nats, shows that it was none."""

BEYOND = math.log(1e9)
"""How far outside the bounds of log ρ the limits of no drift and of no memory are taken."""


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


def profile_rate(
    maximizer: LikelihoodMaximizer,
    num_starts: int,
    level: float,
    on_step: Callable[[str], None],
) -> Profile:
    """Maximize from several starts, then walk down the profile to both ends of the interval.

    Args:
        maximizer: Of the likelihood at hand.
        num_starts: Starts, spread evenly in log ρ over the range that the log can tell apart.
        level: Confidence of the interval.
        on_step: Told in words what is being done, for a progress bar.
    """
    low, high = maximizer.rate_bounds
    starts = np.linspace(low, high, num_starts + 2)[1:-1]
    optima = []
    for i, start in enumerate(starts):
        on_step(f"start {i + 1} of {num_starts}")
        optima.append(maximizer.maximize(start, maximizer.start))
    on_step("no drift")
    at_zero = _best_of(maximizer, low - BEYOND, optima)
    on_step("no memory")
    at_infinity = _best_of(maximizer, high + BEYOND, optima)
    failed = [optimum.message for optimum in optima if not optimum.converged]
    best = max([*optima, at_zero, at_infinity], key=lambda optimum: optimum.log_likelihood)

    points = {o.log_rate: o for o in (at_zero, best, at_infinity)}
    drop = 0.5 * chi2.ppf(level, df=1)

    def excess(log_rate: float) -> float:
        if log_rate not in points:
            on_step("interval")
            nearest = min(points, key=lambda known: abs(known - log_rate))
            points[log_rate] = maximizer.maximize_at(log_rate, points[nearest].nuisance)
        return points[log_rate].log_likelihood - best.log_likelihood + drop

    def end(limit: Optimum, direction: float) -> float:
        """Where the profile crosses the threshold on the way from the best rate to a limit."""
        if limit.log_likelihood >= best.log_likelihood - drop:
            return limit.log_rate
        inner = min(max(best.log_rate, low), high)
        # A maximum at a limit may be sharper than the bounds: go on towards it.
        while excess(inner) <= 0:
            inner += min(1.0, max(-1.0, best.log_rate - inner))
        # Walk outwards from the maximum: the crossing next to it is the end of the interval.
        step = 0.25 * direction
        while excess(inner + step) > 0:
            inner += step
            step *= 1.5
        return brentq(excess, *sorted((inner, inner + step)), xtol=ROOT_TOLERANCE)

    while True:
        lower, upper = end(at_zero, -1.0), end(at_infinity, 1.0)
        higher = max(points.values(), key=lambda optimum: optimum.log_likelihood)
        if higher.log_likelihood <= best.log_likelihood + IMPROVEMENT:
            break
        # The walk came upon a better maximum than any start: begin again from there.
        best = _better(higher, maximizer.maximize(higher.log_rate, higher.nuisance))
        points[best.log_rate] = best
        at_zero = _better(at_zero, maximizer.maximize_at(at_zero.log_rate, best.nuisance))
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


def _better(first: Optimum, second: Optimum) -> Optimum:
    return first if first.log_likelihood >= second.log_likelihood else second


def _best_of(maximizer: LikelihoodMaximizer, log_rate: float, optima: list[Optimum]) -> Optimum:
    """The maximum at one rate, from the first start and from the best optimum found so far."""
    best = max(optima, key=lambda optimum: optimum.log_likelihood)
    candidates = [
        maximizer.maximize_at(log_rate, nuisance)
        for nuisance in (maximizer.start, best.nuisance)[: 1 + (len(maximizer.start) > 0)]
    ]
    return max(candidates, key=lambda optimum: optimum.log_likelihood)
