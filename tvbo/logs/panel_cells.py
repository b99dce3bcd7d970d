"""A panel in the units in which it is fitted: gaps, scales, and cells that lie far out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

OUTLIER = 8.0
"""Deviations of a cell from its prediction by its arm's past beyond which it is an outlier."""

WRONG = 16.0
"""Deviations from its arm's centre beyond which a cell is left out of the first estimates, and two
such cells in a row are both outliers."""

TAIL, TAIL_WIDTHS = 0.97, 3.0
"""Quantile of an arm's distances from its median, and its multiple to which they are limited for
the scale of the arm. More that lie far out, such as daily peaks, are the arm's own."""

SMALLEST_DEVIATION, TINY = 1e-3, 1e-300
"""Smallest deviation that an arm is taken to have, as a share of a typical one, and what is above
zero."""

ENOUGH = 30
"""Number of readings beyond two from which an arm's deviation is its own, where there are more."""

RATES = np.geomspace(2e-4, 8.0, 20)
RATIOS = np.concatenate([[1e-4], np.geomspace(1e-3, 5.0, 10)])
"""Rates, and ratios of noise to signal, of which the best of each arm is looked for."""


@dataclass(frozen=True)
class Cells:
    """A panel, or what means and season leave of it, in one unit.

    Args:
        values: ``T x n``; NaN where there is none.
        times: ``T``, in units of the usual gap.
        gaps: ``T``, index of the gap before each time; -1 where a segment begins.
        lags: The distinct gaps, in units of the usual one.
        deviations: ``n``, as by :func:`deviations_of`.
    """

    values: Array
    times: Array
    gaps: NDArray[np.int64]
    lags: Array
    deviations: Array

    @classmethod
    def of(cls, values: Array, times: Array, starts: NDArray[np.bool_]) -> Cells:
        """Return a panel whose segments begin where ``starts`` is true."""
        lags, index = np.unique(np.diff(times).round(9)[~starts[1:]], return_inverse=True)
        gaps = np.full(len(times), -1)
        gaps[~starts] = index
        return cls(values, times, gaps, lags, deviations_of(values))

    @property
    def is_full(self) -> bool:
        """Whether every arm has a value at every time."""
        return not bool(np.isnan(self.values).any())

    @property
    def starts(self) -> NDArray[np.bool_]:
        """Whether each time begins a segment, ``T``."""
        return self.gaps < 0

    @property
    def span(self) -> float:
        """Length of the longest segment."""
        first = np.flatnonzero(self.starts)
        last = np.append(first[1:], len(self.times)) - 1
        return max(1.0, float((self.times[last] - self.times[first]).max()))

    @property
    def num_values(self) -> int:
        """Number of values that are observed."""
        return int((~np.isnan(self.values)).sum())

    def part(self, rows: slice) -> Cells:
        """Return some successive times, whose first begins a segment.

        Arms with less than two values there have the deviations of the whole.
        """
        starts = self.starts[rows].copy()
        starts[0] = True
        part = Cells.of(self.values[rows], self.times[rows], starts)
        few = (~np.isnan(part.values)).sum(0) < 2
        return replace(part, deviations=np.where(few, self.deviations, part.deviations))

    @property
    def is_regular(self) -> bool:
        """Whether all gaps are multiples of the usual one."""
        steps = np.round(self.lags)
        return bool(np.abs(self.lags - steps).max() <= 1e-6 and steps.min() >= 1)


class Units(NamedTuple):
    """The units in which a panel is fitted, in the user's.

    Args:
        center: The centre of each arm, ``n``, from which values are counted.
        value: Unit of values.
        time: Unit of time: the usual gap.
    """

    center: Array
    value: float
    time: float

    def undo(self, cells: Cells) -> Cells:
        """Return a panel in the user's units, in which its deviations are not needed."""
        values = cells.values * self.value + self.center
        return replace(
            cells, values=values, times=cells.times * self.time, lags=cells.lags * self.time
        )


SAME = Units(np.zeros(1), 1.0, 1.0)
"""Units that change nothing."""


@dataclass(frozen=True)
class Outlier:
    """A cell that lies far from what the past of its arm predicts.

    Args:
        time: In the user's unit.
        arm: Index of the arm.
        value: The value, in the user's unit.
        deviations: How many standard deviations of the prediction it lies away.
    """

    time: float
    arm: int
    value: float
    deviations: float


def deviations_of(values: Array) -> Array:
    """Return the standard deviation of each arm, at least a thousandth of a typical one, ``n``.

    That of an arm with gaps is larger by as much as others vary more over all times than over its
    own. Of one with few readings it is in part that of the others.
    """
    read = (~np.isnan(values)).astype(float)
    counts = read.sum(axis=0)
    about = np.nan_to_num(values - np.nansum(values, axis=0) / counts.clip(min=1))
    together = read.T @ read
    # Of each column's arm at the times of each row's.
    squares, sums = (read.T @ each / together.clip(min=1) for each in (about**2, about))
    variances = (about**2).sum(axis=0) / counts.clip(min=1)
    floor = SMALLEST_DEVIATION**2 * variances.mean() + TINY
    variances, within = np.maximum(variances, floor), np.maximum(squares - sums**2, floor)
    elsewhere = np.where(together > 1, counts - together, 0)
    growth = (elsewhere * np.log(variances / within)).sum(axis=1) / elsewhere.sum(axis=1).clip(1)
    variances *= np.exp(growth)
    own = ((counts - 2) / np.clip(len(values) - 2, 1, ENOUGH)).clip(0, 1)
    others = math.exp(np.average(np.log(variances), weights=own + TINY))
    return np.sqrt(variances**own * others ** (1 - own))


def typical_range(values: Array) -> tuple[Array, Array]:
    """Return the centre and the deviation of each arm, with the farthest values drawn in.

    Args:
        values: ``T x n``; NaN where there is none.
    """
    center = np.nanmedian(values, axis=0)
    distance = values - center
    # In a short log at least the farthest one is limited.
    tail = min(TAIL, 1 - 1 / (len(values) - 1))
    limit = TAIL_WIDTHS * np.nanquantile(np.abs(distance), tail, axis=0)
    distance = np.clip(distance, -limit, limit)
    return center + np.nanmean(distance, axis=0), np.nanstd(distance, axis=0)


def _predictions(
    cells: Cells, rates: Array, variances: Array, noise: Array
) -> Iterator[tuple[int, Array, Array]]:
    """Yield each time, and mean and variance of each arm's value there by the times before.

    Each arm is filtered by itself, or in several models. What stands in a row of ``cells.values``
    when the next time is asked for is what it was.

    Args:
        cells: The panel.
        rates: ρ of each arm per usual gap, ``... x n``, as the others.
        variances: Variance of what drifts in each arm.
        noise: Noise variance of each arm.
    """
    for t, gap in enumerate(cells.gaps):
        if gap < 0:
            mean, variance = np.zeros_like(variances), variances
        else:
            decay = np.exp(-0.5 * rates * cells.lags[gap])
            mean, variance = decay * mean, decay**2 * variance + variances * (1 - decay**2)
        total = variance + noise
        yield t, mean, total
        error = cells.values[t] - mean
        gain = np.where(np.isnan(error), 0.0, variance / total)
        mean, variance = mean + gain * np.nan_to_num(error), variance * (1 - gain)


def scan_arms(cells: Cells) -> tuple[Array, Array, Array]:
    """Return rates, variances and noise variances of the arms by themselves, the best of a grid."""
    rates, ratios = (each.reshape(-1, 1) for each in np.meshgrid(RATES, RATIOS, indexing="ij"))
    squares, logs = np.zeros((2, len(rates), cells.values.shape[1]))
    for t, mean, total in _predictions(cells, rates, np.ones_like(rates), ratios):
        error = cells.values[t] - mean
        squares += np.nan_to_num(error**2 / total)
        logs += np.where(np.isnan(error), 0.0, np.log(total))
    counts = (~np.isnan(cells.values)).sum(0)
    # An arm without a value has the variance of the whole log.
    scale = np.where(counts > 0, squares / counts.clip(min=1), cells.deviations**2) + 1e-12
    best = (-0.5 * (counts * np.log(scale) + logs)).argmax(0)
    variances = scale[best, np.arange(len(best))]
    return rates[best, 0], variances, variances * ratios[best, 0]


def replace_outliers(
    cells: Cells, rates: Array, variances: Array, noise: Array
) -> tuple[Array, list[tuple[int, int, float]]]:
    """Return values whose outliers are what is predicted, and these as row, arm and deviations.

    Each arm is filtered by itself. Of successive outliers on one side only the first is replaced:
    the second shows that the arm has moved. Of those beyond :data:`WRONG` the first two are.

    Args:
        cells: The panel, in units of each arm's deviation, about its centre.
        rates: ρ of each arm per usual gap, ``n``.
        variances: Variance of what drifts in each arm, ``n``.
        noise: Noise variance of each arm, ``n``.
    """
    cells = replace(cells, values=cells.values.copy())
    side, in_a_row = np.zeros((2, len(rates)))
    found: list[tuple[int, int, float]] = []
    for t, mean, total in _predictions(cells, rates, variances, noise):
        row = cells.values[t]
        distance = np.nan_to_num((row - mean) / np.sqrt(total))
        beyond = np.where(np.abs(distance) > OUTLIER, np.sign(distance), 0.0)
        in_a_row = np.where(np.isnan(row) | (beyond == side), in_a_row, 0) + (beyond != 0)
        side = np.where(np.isnan(row), side, beyond)
        drawn = (beyond != 0) & (in_a_row <= np.where(np.abs(row) > WRONG, 2, 1))
        found += [(t, int(arm), float(distance[arm])) for arm in np.flatnonzero(drawn)]
        row[drawn] = mean[drawn]
    return cells.values, found


@dataclass(frozen=True)
class Regressors:
    """The functions of time whose coefficients are the means and the season of each arm.

    The prior of the season and what the panel says of it are independent in the modes of a
    covariance over arms.

    Args:
        season: The season in units of the usual gap; None if there is none.
        columns: ``T x q``, the first of ones.
        modes: ``n x n``, the modes as columns.
        precisions: ``n x q``, prior precisions of the coefficients of the modes, zero of the means.
        coefficients: ``q x n``, of the arms, where a search begins.
    """

    season: Season | None
    columns: Array
    modes: Array
    precisions: Array
    coefficients: Array

    def removed_from(self, cells: Cells) -> Cells:
        """Return a panel about means and season."""
        return replace(cells, values=cells.values - self.columns @ self.coefficients)

    def log_prior(self, coefficients: Tensor) -> Tensor:
        """Return the log density of coefficients ``q x n`` less that of a season of zero."""
        in_modes = coefficients @ torch.as_tensor(self.modes)
        return -0.5 * (torch.as_tensor(self.precisions).mT * in_modes.square()).sum()


def posterior_precision(information: Array, precisions: Array) -> Array:
    """Return the posterior precisions of the coefficients of each mode, ``n x q x q``."""
    return information + precisions[:, None] * np.eye(precisions.shape[1])


def log_volume(information: Array, precisions: Array) -> float:
    """Return the log ratio of the widths of posterior and prior, of all coefficients but means."""
    total = np.linalg.slogdet(posterior_precision(information, precisions))[1]
    prior = np.log(precisions[:, 1:]).sum(1) + np.log(information[:, 0, 0])
    return -0.5 * float((total - prior).sum())


def columns_of(season: Season | None, times: Array) -> Array:
    """Return a column of ones and the functions of the season, ``len(times) x q``."""
    ones = np.ones((len(times), 1))
    return ones if season is None else np.hstack([ones, season.basis(times)])
