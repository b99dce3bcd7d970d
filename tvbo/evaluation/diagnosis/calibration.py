"""How outcomes compare with their predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
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
    come late, :attr:`independent` are those that begin with the first outcome and go on each time
    with the first trial asked after the last of them was observed.

    Args:
        trials: The rows of :class:`Diagnosis` that were judged.
    """

    trials: pd.DataFrame

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def z(self) -> pd.Series[float]:
        """Standardized errors."""
        return self.trials["z"]

    @cached_property
    def independent(self) -> pd.Series[float]:
        """Those that are independent if the model is right."""
        rows, observed = [], 0
        for row, (opened, ended) in enumerate(
            zip(self.trials.opened, self.trials.ended, strict=True)
        ):
            if opened > observed:
                rows.append(row)
                observed = ended
        return self.z.iloc[rows]

    @property
    def coverage(self) -> float:
        """Share of the outcomes within the central 95 % band of their prediction."""
        return float((self.z.abs() <= ndtri(0.5 + BAND / 2)).mean())

    @property
    def coverage_interval(self) -> tuple[float, float]:
        """95 % interval for it (Clopper, Pearson, 1934), as of so many outcomes as are independent.

        (0, 1) without outcomes.
        """
        share, n = self.coverage, len(self.independent)
        if n == 0:
            return 0.0, 1.0
        k, tail = share * n, (1 - BAND) / 2
        low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
        high = 1.0 if share == 1 else float(betaincinv(k + 1, n - k, 1 - tail))
        return low, high

    @property
    def mean(self) -> float:
        """Mean of the independent errors; NaN without any."""
        return float(self.independent.mean())

    @property
    def deviation(self) -> float:
        """Root mean square of the errors, 1 if the model is right."""
        return math.sqrt((self.z**2).mean())

    @property
    def deviation_limits(self) -> tuple[float, float]:
        """Range that :attr:`deviation` leaves with probability 0.01 if the model is right.

        From the distribution of χ², with as many degrees of freedom as errors are independent.
        """
        n = max(1, len(self.independent))
        low, high = (
            math.sqrt(2 * float(gammaincinv(n / 2, tail)) / n) for tail in (RARE / 2, 1 - RARE / 2)
        )
        return low, high

    @property
    def lag_correlation(self) -> float:
        """Correlation of successive independent errors; NaN for fewer than three."""
        z = (self.independent - self.mean).to_numpy()
        return float(z[1:] @ z[:-1] / (z @ z)) if len(z) > 2 else math.nan

    @property
    def chance(self) -> float:
        """Twice the standard error of both the mean and the correlation if the model is right."""
        return 2 / math.sqrt(len(self.independent))

    @property
    def outlier_limit(self) -> float:
        """Error beyond which a right model has an outcome with probability 0.01 at most."""
        return -float(ndtri(RARE / (2 * max(1, len(self)))))

    @property
    def outliers(self) -> pd.Series[float]:
        """Errors beyond :attr:`outlier_limit` by the number of their trial, the largest first."""
        z = self.z.set_axis(self.trials["trial"])
        return z[z.abs() > self.outlier_limit].sort_values(key=abs, ascending=False)
