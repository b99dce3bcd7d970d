"""How outcomes compare with their predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import betaincinv, gammaincinv, ndtri

if TYPE_CHECKING:
    import pandas as pd

BAND = 0.95
"""Probability of the central band of a prediction, and of the interval for its coverage."""

RARE = 0.01
"""Probability that a right model has an outlier among all outcomes, at most."""


@dataclass(frozen=True)
class Calibration:
    r"""Standardized errors of one-step-ahead predictions.

    While the model is right, the errors :math:`z = (y - m) / s`, with ``m`` and ``s`` from the
    outcomes observed before the ask and ``s`` including the noise, are standard normal. Two of them
    are independent if the later trial was asked after the earlier one was observed. Where outcomes
    come late, those counted as independent begin with the first outcome and go on each time with
    the first trial asked after the last of them was observed.

    Args:
        num_outcomes: Number of outcomes.
        num_independent: Number of those that are independent if the model is right.
        coverage: Share of the outcomes within the central 95 % band of their prediction; NaN
            without outcomes, as are the figures below.
        coverage_interval: 95 % interval for it (Clopper, Pearson, 1934), as of so many outcomes as
            are independent; (0, 1) without outcomes.
        mean: Mean of the independent errors.
        deviation: Root mean square of the errors, 1 if the model is right.
        deviation_limits: Range that it leaves with probability 0.01 if the model is right, from the
            distribution of χ² with as many degrees of freedom as errors are independent.
        lag_correlation: Correlation of successive independent errors; NaN for fewer than three,
            or if all are equal.
        outlier_limit: Error beyond which a right model has an outcome with probability 0.01 at
            most.
        outliers: Errors beyond it by the number of their trial, the largest first.
    """

    num_outcomes: int
    num_independent: int
    coverage: float
    coverage_interval: tuple[float, float]
    mean: float
    deviation: float
    deviation_limits: tuple[float, float]
    lag_correlation: float
    outlier_limit: float
    outliers: Mapping[int, float]


def calibration_of(trials: pd.DataFrame) -> Calibration:
    """Return the calibration of trials, rows of :class:`Diagnosis`, which were judged."""
    rows, observed = [], 0
    for row, (opened, ended) in enumerate(zip(trials.opened, trials.ended, strict=True)):
        if opened > observed:
            rows.append(row)
            observed = ended
    z, n = trials["z"].set_axis(trials["trial"]), len(rows)
    independent, tail = z.iloc[rows], (1 - BAND) / 2
    coverage = float((z.abs() <= ndtri(1 - tail)).mean())
    low = float(betaincinv(coverage * n, n - coverage * n + 1, tail)) if coverage > 0 else 0.0
    high = float(betaincinv(coverage * n + 1, n - coverage * n, 1 - tail)) if coverage < 1 else 1.0
    degrees = max(1, n)
    least, most = (
        math.sqrt(2 * float(gammaincinv(degrees / 2, p)) / degrees)
        for p in (RARE / 2, 1 - RARE / 2)
    )
    centered = (independent - independent.mean()).to_numpy()
    correlation = math.nan
    if n > 2 and centered.any():
        correlation = float(centered[1:] @ centered[:-1] / (centered @ centered))
    limit = -float(ndtri(RARE / (2 * max(1, len(z)))))
    outliers = z[z.abs() > limit].sort_values(key=abs, ascending=False)
    return Calibration(
        num_outcomes=len(z),
        num_independent=n,
        coverage=coverage,
        coverage_interval=(low, high),
        mean=float(independent.mean()),
        deviation=math.sqrt((z**2).mean()),
        deviation_limits=(least, most),
        lag_correlation=correlation,
        outlier_limit=limit,
        outliers=outliers.to_dict(),
    )
