"""Estimates of a delay from outcomes that arrived and from those still pending."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvbo.optimizers.bpe.sub_exponential import SubExponentialDelay

GRID = 201
"""Number of points at which the moment condition is evaluated on an estimated distribution."""


def delay_distribution(
    arrived: Sequence[int], awaited: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kaplan-Meier estimate of the distribution of a delay in whole rounds.

    An estimate from the arrived outcomes alone would be biased towards short delays. An outcome
    pending for ``a`` rounds is a censored observation: its delay is larger than ``a``. Delays are
    assumed independent of the time at which a trial was asked. The probability beyond the largest
    observed delay is assigned to the next round after the longest wait (Efron's rule); where that
    probability is large, the estimated mean is too small.

    Args:
        arrived: Delays of outcomes that arrived.
        awaited: For each pending outcome, the rounds since its trial was asked; for each lost one,
            the rounds until it was lost.

    Returns:
        Delays, increasing, and their probabilities.

    Raises:
        ValueError: if there is neither, or an entry is negative or not finite.
    """
    # Imported here since importing scipy.stats takes longer than the rest of tvbo.
    from scipy.stats import CensoredData, ecdf

    exact, censored = np.asarray(arrived, dtype=float), np.asarray(awaited, dtype=float)
    seen = np.concatenate([exact, censored])
    if len(seen) == 0:
        raise ValueError("Expected at least one delay, arrived or awaited. Got none.")
    if not (np.isfinite(seen) & (seen >= 0)).all():
        raise ValueError(f"Expected delays >= 0 and finite. Got {seen.min()} to {seen.max()}.")
    after_all = seen.max() + 1
    if len(exact) == 0:
        return np.array([after_all]), np.array([1.0])
    survival = ecdf(CensoredData(uncensored=exact, right=censored)).sf
    values = np.append(survival.quantiles, after_all)
    probabilities = -np.diff(survival.probabilities, prepend=1.0, append=0.0)
    # Censored delays are among the values, with probability 0.
    positive = probabilities > 0
    return values[positive], probabilities[positive] / probabilities[positive].sum()


def estimate_delay(arrived: Sequence[int], awaited: Sequence[int]) -> SubExponentialDelay:
    r"""Return the parameters of the distribution that :func:`delay_distribution` estimates.

    The mean is that of the distribution, ``b`` its standard deviation, and :math:`\xi^2` the
    largest :math:`2 K(\eta) / \eta^2` for :math:`|\eta| \le 1/b`, with K the logarithm of the
    centered moments. The estimation error is ignored.

    Args:
        arrived: Delays of outcomes that arrived.
        awaited: For each pending outcome, the rounds since its trial was asked; for each lost one,
            the rounds until it was lost.

    Raises:
        ValueError: if there is neither, or an entry is negative or not finite.
    """
    values, probabilities = delay_distribution(arrived, awaited)
    mean = probabilities @ values
    centered = values - mean
    variance = probabilities @ centered**2
    if variance == 0:
        return SubExponentialDelay.constant(float(mean))
    b = np.sqrt(variance)
    # η = 0 is left out: the limit there is the variance.
    eta = np.linspace(-1, 1, GRID)[np.arange(GRID) != GRID // 2] / b
    log_moment = np.log(np.exp(np.outer(eta, centered)) @ probabilities)
    xi_squared = max(variance, (2 * log_moment / eta**2).max())
    return SubExponentialDelay(float(mean), float(np.sqrt(xi_squared)), float(b))
