"""Means of correlated series, with standard errors from blocks that are long enough."""

from __future__ import annotations

import math

import numpy as np

from tvbo.quadratic_model import Array


def correlation_length(series: Array) -> float:
    r"""Return :math:`1 + 2 \sum_k \rho_k`, times that count as one, of a series.

    The sum ends before the first lag at which two successive correlations are not positive together
    (Geyer, 1992).

    Args:
        series: ``T``; NaN is left out.
    """
    known = series[~np.isnan(series)]
    centered = known - known.mean() if len(known) else known
    power = float(centered @ centered)
    if power == 0:
        return 1.0
    size = 2 ** math.ceil(math.log2(2 * len(centered)))
    spectrum = np.abs(np.fft.rfft(centered, size)) ** 2
    correlations = np.fft.irfft(spectrum, size)[: len(centered)] / power
    pairs = correlations[: len(correlations) // 2 * 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs <= 0)
    count = negative[0] if len(negative) else len(pairs)
    return max(1.0, 2 * float(pairs[:count].sum()) - 1)


def mean_and_error(series: Array) -> tuple[float, float]:
    """Return the mean of a series and its standard error, from the correlation of its times.

    Args:
        series: ``T``; NaN is left out.
    """
    known = series[~np.isnan(series)]
    variance = known.var() * correlation_length(known) / max(1, len(known))
    return float(known.mean()), math.sqrt(variance)
