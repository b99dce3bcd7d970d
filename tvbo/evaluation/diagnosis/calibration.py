"""Predictions of trials, and how outcomes compare with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import betaincinv, gammaincinv, ndtri
from torch import Tensor

from tvbo.models.at_bounds import AtBound
from tvbo.retention import Prediction

BAND = 0.95
"""Probability of the central band of a prediction, and of the interval for its coverage."""

RARE = 0.01
"""Probability that a right model has an outlier among all outcomes, at most."""


@dataclass(frozen=True)
class PredictedTrial:
    """A trial that was asked, with what the model said of its outcome then.

    Args:
        prediction: Mean and variance by the outcomes observed before the ask, and the noise
            variance, NaN where it came with the outcome and none has come.
        outcome: The outcome observed; NaN where there is none.
        is_fitted: Whether all hyperparameters were given or fitted by then; before the first fit
            they are defaults.
        model_size: Number of observations that the prediction rested on.
        parameters: Hyperparameters in the user's units, by name.
        form: The form of drift as text.
        half_life: Lag at which the correlation over time has fallen to one half, in the user's unit
            of time; infinite without drift, NaN for a sum of several forms.
        at_bounds: The learned parameters at a bound of their constraint.
        told_before: Number of outcomes observed before the ask.
        told_as: Number of the outcome in the order of telling, from 1; None where there is none.
    """

    prediction: Prediction
    is_fitted: bool
    model_size: int
    parameters: dict[str, float]
    form: str
    half_life: float
    at_bounds: tuple[AtBound, ...]
    told_before: int
    outcome: float = math.nan
    told_as: int | None = None

    @property
    def z(self) -> float:
        """The outcome minus its prediction, in predictive standard deviations, noise included.

        NaN where there is no outcome, or neither variance nor noise.
        """
        if self.prediction.variance + self.prediction.noise_variance == 0:
            return math.nan
        return self.prediction.standardized(self.outcome)

    @property
    def is_judged(self) -> bool:
        """Whether the outcome can be compared with a prediction of the fitted model."""
        return self.is_fitted and math.isfinite(self.z)


@dataclass(frozen=True)
class Calibration:
    r"""Standardized errors of one-step-ahead predictions.

    While the model is right, the errors :math:`z = (y - m) / s`, with ``m`` and ``s`` from the
    outcomes observed before the ask and ``s`` including the noise, are standard normal. Two of them
    are independent if the later trial was asked after the earlier one was observed. Where outcomes
    come late, :attr:`independent` are those that begin with the first outcome and go on each time
    with the first trial asked after the last of them was observed.

    Args:
        trials: The trials that were judged, in the order of asking.
    """

    trials: Sequence[PredictedTrial]

    def __len__(self) -> int:
        return len(self.trials)

    @cached_property
    def z(self) -> Tensor:
        """Standardized errors, ``n``."""
        return torch.tensor([trial.z for trial in self.trials], dtype=torch.float64)

    @cached_property
    def independent(self) -> Tensor:
        """Mask, ``n``, of the outcomes whose errors are independent if the model is right."""
        mask, told_as = [], 0
        for trial in self.trials:
            mask.append(trial.told_before >= told_as)
            if mask[-1]:
                told_as = trial.told_as or 0
        return torch.tensor(mask, dtype=torch.bool)

    @property
    def num_independent(self) -> int:
        """Number of these outcomes."""
        return int(self.independent.sum())

    @property
    def coverage(self) -> float:
        """Share of the outcomes within the central 95 % band of their prediction."""
        limit = float(ndtri(0.5 + BAND / 2))
        return (self.z.abs() <= limit).double().mean().item()

    @property
    def coverage_interval(self) -> tuple[float, float]:
        """95 % interval for it (Clopper, Pearson, 1934), as of so many outcomes as are independent.

        (0, 1) without outcomes.
        """
        share, n = self.coverage, self.num_independent
        if n == 0:
            return 0.0, 1.0
        k, tail = share * n, (1 - BAND) / 2
        low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
        high = 1.0 if share == 1 else float(betaincinv(k + 1, n - k, 1 - tail))
        return low, high

    @property
    def mean(self) -> float:
        """Mean of the independent errors; NaN without any."""
        return self.z[self.independent].mean().item()

    @property
    def deviation(self) -> float:
        """Root mean square of the errors, 1 if the model is right."""
        return self.z.square().mean().sqrt().item()

    @property
    def deviation_limits(self) -> tuple[float, float]:
        """Range that :attr:`deviation` leaves with probability 0.01 if the model is right.

        From the distribution of χ², with as many degrees of freedom as errors are independent.
        """
        n = max(1, self.num_independent)
        low, high = (
            math.sqrt(2 * float(gammaincinv(n / 2, tail)) / n) for tail in (RARE / 2, 1 - RARE / 2)
        )
        return low, high

    @property
    def lag_correlation(self) -> float:
        """Correlation of successive independent errors; NaN for fewer than three."""
        z = self.z[self.independent]
        if len(z) < 3:
            return math.nan
        z = z - z.mean()
        return ((z[1:] * z[:-1]).sum() / z.square().sum()).item()

    @property
    def outlier_limit(self) -> float:
        """Error beyond which a right model has an outcome with probability 0.01 at most."""
        return -float(ndtri(RARE / (2 * max(1, len(self)))))

    @property
    def outliers(self) -> list[PredictedTrial]:
        """The trials beyond :attr:`outlier_limit`."""
        return [trial for trial in self.trials if abs(trial.z) > self.outlier_limit]

    @property
    def without_outliers(self) -> Calibration:
        """That of the other trials."""
        return Calibration([trial for trial in self.trials if abs(trial.z) <= self.outlier_limit])
