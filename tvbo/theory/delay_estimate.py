"""Parameters of a delay from outcomes that arrived, and from those still awaited."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import CensoredData, ecdf

from tvbo.theory.delays import SubExponentialDelay

GRID = 201
"""Points at which the moment condition is imposed on an estimated distribution."""


def delay_distribution(
    arrived: Sequence[int], awaited: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Kaplan-Meier estimate of the distribution of a delay in whole rounds.

    Counting only what has arrived would favour short delays: the long ones are still awaited. An
    outcome awaited for ``a`` rounds says that its delay is larger than ``a``, and the estimate uses
    just that. Delays are taken to be independent of how long ago a trial was asked. What no
    outcome was old enough to show, the probability beyond the largest delay seen, is put right
    behind the longest wait (Efron's rule): where that is much, the mean is too small.

    Args:
        arrived: Delays of outcomes that came.
        awaited: How long the others have been waited for, or were until they were lost.

    Returns:
        Delays, increasing, and their probabilities.

    Raises:
        ValueError: if there is neither, or an entry is negative or not finite.
    """
    arrived, awaited = np.asarray(arrived, dtype=float), np.asarray(awaited, dtype=float)
    seen = np.concatenate([arrived, awaited])
    if len(seen) == 0:
        raise ValueError("Expected at least one delay, arrived or awaited. Got none.")
    if not (np.isfinite(seen) & (seen >= 0)).all():
        raise ValueError(f"Expected delays >= 0 and finite. Got {seen.min()} to {seen.max()}.")
    after_all = seen.max() + 1
    if len(arrived) == 0:
        return np.array([after_all]), np.array([1.0])
    survival = ecdf(CensoredData(uncensored=arrived, right=awaited)).sf
    values = np.append(survival.quantiles, after_all)
    probabilities = -np.diff(survival.probabilities, prepend=1.0, append=0.0)
    # Those censored stand among the values with no probability of their own.
    known = probabilities > 0
    return values[known], probabilities[known] / probabilities[known].sum()


def estimate_delay(arrived: Sequence[int], awaited: Sequence[int]) -> SubExponentialDelay:
    r"""The parameters of :func:`delay_distribution`, as if it were the true one.

    The mean is that of the distribution, ``b`` its standard deviation, and :math:`\xi^2` the
    largest :math:`2 K(\eta) / \eta^2` for :math:`|\eta| \le 1/b`, with K the logarithm of the
    centred moments. No allowance is made for the estimate's own error.

    Args:
        arrived: Delays of outcomes that came.
        awaited: How long the others have been waited for, or were until they were lost.

    Raises:
        ValueError: as there.
    """
    values, probabilities = delay_distribution(arrived, awaited)
    mean = probabilities @ values
    centred = values - mean
    variance = probabilities @ centred**2
    if variance == 0:
        return SubExponentialDelay.constant(float(mean))
    b = np.sqrt(variance)
    # Not at η = 0, where the limit is the variance.
    eta = np.linspace(-1, 1, GRID)[np.arange(GRID) != GRID // 2] / b
    log_moment = np.log(np.exp(np.outer(eta, centred)) @ probabilities)
    xi_squared = max(variance, (2 * log_moment / eta**2).max())
    return SubExponentialDelay(float(mean), float(np.sqrt(xi_squared)), float(b))
