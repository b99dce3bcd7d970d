"""Seasons: smooth functions of time that are the same in every period, or in every segment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ive

from tvbo.quadratic_model import Array

MAX_HARMONICS = 24
"""Largest number of harmonics of a season that is looked for."""

MOST_HARMONICS = 10_000
"""Largest number of harmonics of any season."""


@dataclass(frozen=True)
class Season(ABC):
    """A function of time that is the same in every period, as a sum of ``q`` smooth functions.

    Args:
        length: Length of the period, or of the segments, in units of time.
        num_harmonics: Number ``J`` of harmonics.
        start: Time at which a period begins.
    """

    shape: ClassVar[tuple[float, ...]] = (math.log(0.3),)
    """Start of the parameters that :meth:`weights` takes: the logarithm of a lengthscale."""

    shape_bounds: ClassVar[tuple[tuple[float, float], ...]] = ((math.log(0.02), math.log(3.0)),)
    """Bounds of these parameters."""

    kind: ClassVar[str] = "period"
    """What repeats, for a phrase that goes on with its length."""

    length: float
    num_harmonics: int
    start: float = 0.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not self.length > 0 or not 1 <= self.num_harmonics <= MOST_HARMONICS:
            raise ValueError(
                f"Expected a season of length > 0 and 1 to {MOST_HARMONICS} harmonics. Got "
                f"{self.length} and {self.num_harmonics}."
            )

    @property
    def orders(self) -> Array:
        """Orders of the harmonics, ``J``."""
        return np.arange(1.0, self.num_harmonics + 1)

    @abstractmethod
    def basis(self, times: Array) -> Array:
        """Return the functions at some times, ``len(times) x q``."""

    @abstractmethod
    def weights(self, shape: Array) -> Array:
        """Return the prior variances of the coefficients, ``q``, for a season of variance one.

        Args:
            shape: The parameters. The larger the lengthscale, the more of the variance is in the
                first harmonics.
        """

    def in_unit_of_time(self, unit: float) -> Season:
        """Return the same season for times divided by ``unit``."""
        return replace(self, length=self.length / unit, start=self.start / unit)


@dataclass(frozen=True)
class PeriodicSeason(Season):
    r"""A strict season with a known period.

    The prior is that of :class:`tvbo.kernels.SeasonalKernel`: harmonic ``j`` has the variance
    :math:`w_j \propto I_j(\ell^{-2})` (Solin, Särkkä, 2014, equation (25)).
    """

    def basis(self, times: Array) -> Array:
        """Return cosines and sines of all harmonics, ``len(times) x 2J``."""
        angles = np.outer(times - self.start, 2 * math.pi * self.orders / self.length)
        return np.hstack([np.cos(angles), np.sin(angles)])

    def weights(self, shape: Array) -> Array:
        """Return the prior variances of the coefficients, ``2J``."""
        shares = ive(self.orders, math.exp(-2 * shape[0]))
        return np.tile(shares / shares.sum(), 2)


@dataclass(frozen=True)
class WorkweekSeason(PeriodicSeason):
    r"""A day's profile, which differs between working days and weekends.

    On working days it is :math:`s + d`, on Saturdays and Sundays :math:`s - d`, with a level in
    ``d``. Both have the prior of :class:`PeriodicSeason`; the second parameter of the shape is the
    logit of the share of ``d`` in the variance.

    Args:
        length: Length of a day, in units of time.
        num_harmonics: Number ``J`` of harmonics.
        start: Time at which a Monday begins.
    """

    kind: ClassVar[str] = "working days apart from weekends, period"
    shape: ClassVar[tuple[float, ...]] = (*PeriodicSeason.shape, -0.7)
    shape_bounds = (*PeriodicSeason.shape_bounds, (-7.0, 7.0))

    def is_weekend(self, times: Array) -> NDArray[np.bool_]:
        """Return whether each time lies on a Saturday or Sunday."""
        # A time that rounding puts just before midnight is one of the next day.
        day = np.floor((times - self.start) / self.length + 1e-9) % 7
        return day >= 5

    def basis(self, times: Array) -> Array:
        """Return the functions of ``s``, one and the functions of ``d``, ``T x (4J + 1)``."""
        profile = super().basis(times)
        sign = np.where(self.is_weekend(times), -1.0, 1.0)[:, None]
        return np.hstack([profile, sign, sign * profile])

    def weights(self, shape: Array) -> Array:
        """Return the prior variances of the coefficients, ``4J + 1``."""
        weights, share = super().weights(shape), expit(shape[1])
        return np.concatenate([(1 - share) * weights, [share / 2], share * weights])


@dataclass(frozen=True)
class SegmentProfile(Season):
    r"""What is the same in all segments, as a smooth function of the time within a segment.

    The functions are cosines over the length of a segment, with the spectral density of a squared
    exponential kernel as prior (Solin, Särkkä, 2020, with reflecting ends). The lengthscale is a
    share of the length.

    Args:
        length: Length of the segments.
        num_harmonics: Number of cosines.
        start: Time at which the segments begin.
    """

    kind: ClassVar[str] = "profile of segments of length"

    def basis(self, times: Array) -> Array:
        """Return the cosines, ``len(times) x J``."""
        angles = np.outer(times - self.start, math.pi * self.orders / self.length)
        return math.sqrt(2) * np.cos(angles)

    def weights(self, shape: Array) -> Array:
        """Return the prior variances of the coefficients, ``J``."""
        shares: Array = np.exp(-0.5 * (math.pi * math.exp(shape[0]) * self.orders) ** 2)
        return np.asarray(shares / shares.sum(), dtype=np.float64)
