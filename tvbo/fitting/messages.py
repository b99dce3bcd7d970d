"""Messages on the reliability of a fit."""

from __future__ import annotations

import math

from tvbo.fitting.dataset import DriftLog
from tvbo.fitting.maximize import LikelihoodMaximizer
from tvbo.fitting.profile import Profile
from tvbo.fitting.vecchia import VecchiaLikelihood

LONG = 10.0
"""Half-life, as a multiple of the longest segment, above which ε is an extrapolation."""

NEGLIGIBLE = 1e-6
"""Share of variance that omitted observations explain below which no message is given."""

FLAT = 0.1
"""Range of the profile, in nats, below which the likelihood counts as flat."""


def fit_messages(
    profile: Profile,
    maximizer: LikelihoodMaximizer,
    log: DriftLog,
    by_noise: list[tuple[float, float]],
    sigma2: float,
    level: float,
    time_unit: str,
) -> list[str]:
    """Return warnings on the reliability of the numbers.

    Args:
        profile: The profile likelihood.
        maximizer: The maximizer of the likelihood.
        log: The observations.
        by_noise: Pairs ``(σ², ε)``, as in :class:`~tvbo.fitting.DriftFit`.
        sigma2: σ² at the maximum.
        level: Confidence of the interval.
        time_unit: Name of the unit of time.
    """
    messages = []
    best = profile.best
    low, high = profile.interval
    values = [y for _, y in profile.points]
    change = max(values) - min(values)
    half_life = 2 * math.log(2) / math.exp(best.log_rate)
    if change < FLAT:
        messages.append(
            f"The likelihood is flat: from no drift to no memory it changes by {change:.2g} nats, "
            "so this log says nothing about ε."
        )
    elif low == 0 and high == math.inf:
        messages.append(
            f"The {level:.0%} interval is all of [0, 1]: the log is too short, or too sparse in "
            "time, to tell the drift."
        )
    elif best.log_rate <= maximizer.rate_bounds[0] and low == 0:
        messages.append("ε is at its lower bound: the log shows no drift.")
    elif best.log_rate >= maximizer.rate_bounds[1]:
        messages.append(
            "ε is at its upper bound: the function shares nothing between times, or the times are "
            "too far apart to see what it shares."
        )
    elif half_life > LONG * log.span and low > 0:
        messages.append(
            f"The half-life is more than {LONG:g} times the length of the log: the function "
            "drifts, but so slowly for its variance that ε and the signal variance cannot be told "
            "apart. Trust neither alone; a fixed kernel, or a longer log, tells ε."
        )
    if low > 40:
        messages.append(
            f"ε rounds to 1 per {time_unit}: state time in a shorter unit to tell it from 1."
        )
    likelihood = maximizer.likelihood
    if isinstance(likelihood, VecchiaLikelihood):
        weight = likelihood.neglected_weight(profile.rate(best.log_rate))
        if weight > NEGLIGIBLE:
            messages.append(
                "The log is too long for the exact likelihood: each block of observations was "
                f"conditioned on the {likelihood.conditioning_size} before it. Of the variance of "
                f"the function at a block, a share of at most {weight:.2g} was there already at "
                "the time of the nearest observation left out."
            )
    for name in maximizer.nuisance.at_bounds(best.nuisance):
        if name == "noise variance":
            messages.append(
                f"At an end of its range: noise variance, {sigma2:.3g}."
                + _rests_on(by_noise, sigma2)
            )
        else:
            messages.append(f"At an end of its range: {name}.")
    if log.Yvar is None and maximizer.nuisance.noise_variance is not None:
        messages.append(
            f"The noise variance {sigma2:.3g} was given, not learned." + _rests_on(by_noise, sigma2)
        )
    if not best.converged:
        messages.append(f"The maximization did not converge: {best.message}.")
    return messages


def _rests_on(by_noise: list[tuple[float, float]], sigma2: float) -> str:
    """Return ε at half and twice the noise variance in words, as far as it could be fitted."""
    words = [
        f"{rate:.3g} with {name}"
        for name, factor in (("half of it", 0.5), ("twice as much", 2.0))
        for variance, rate in by_noise
        if math.isclose(variance, factor * sigma2, rel_tol=1e-9)
    ]
    return f" ε rests on it: {', '.join(words)}." if words else " ε rests on it."
