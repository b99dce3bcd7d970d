"""Panels in segments, their regressors, and the covariance of their arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

SMALLEST = 1e-6
"""Smallest eigenvalue of the covariance over arms, as a share of the mean one."""


SMALLEST_START = 1e-3
"""Smallest eigenvalue of the first estimate of that covariance, as a share of the largest."""


LEAST_CORRELATION = 0.2
"""Mean correlation of successive residuals from which the covariance is estimated by them; with
less, the error of that estimate exceeds what the noise adds."""


@dataclass(frozen=True)
class SegmentGroup:
    """Segments of a panel with the same times.

    Args:
        times: ``T``.
        gaps: ``T - 1`` indices of the gaps between them.
        values: ``T x n x c``, of arms or modes, in ``c`` segments.
    """

    times: Array
    gaps: list[int]
    values: Array


def regressors(season: Season | None, times: Array) -> Array:
    """Return a column of ones and the functions of the season, ``len(times) x q``."""
    ones = np.ones((len(times), 1))
    return ones if season is None else np.hstack([ones, season.basis(times)])


@dataclass(frozen=True)
class PanelData:
    """A full panel in units in which computations are of order one.

    Args:
        groups: Segments with the same times together, with values of the arms.
        lags: Distinct gaps between times; the first is the usual one.
    """

    groups: list[SegmentGroup]
    lags: Array

    @property
    def num_times(self) -> int:
        """Number of times of all segments."""
        return sum(group.values.shape[0] * group.values.shape[2] for group in self.groups)

    @property
    def num_values(self) -> int:
        """Number of values, of all arms at all times."""
        return self.num_times * int(self.groups[0].values.shape[1])

    @property
    def span(self) -> float:
        """Length of the longest segment."""
        return max(float(np.ptp(group.times)) for group in self.groups)

    def stacked(self, season: Season | None) -> tuple[Array, Array]:
        """Return all values, ``N x n``, and the regressors of each row, ``N x q``."""
        columns = [
            regressors(season, group.times)
            for group in self.groups
            for _ in range(group.values.shape[2])
        ]
        return np.vstack(self.segments()), np.vstack(columns)

    def residuals(self, season: Season | None, coefficients: Array) -> PanelData:
        """Return the panel less means and season, of coefficients ``q x n``."""
        explained = [regressors(season, group.times) @ coefficients for group in self.groups]
        groups = [
            replace(group, values=group.values - part[:, :, None])
            for group, part in zip(self.groups, explained, strict=True)
        ]
        return PanelData(groups, self.lags)

    def segments(self) -> list[Array]:
        """Return the values of each segment, ``T x n``."""
        return [g.values[:, :, k] for g in self.groups for k in range(g.values.shape[2])]

    def turned(self, modes: Array) -> list[SegmentGroup]:
        """Return the segments of the modes, ``values @ modes``."""
        return [
            replace(group, values=np.einsum("tnc,nm->tmc", group.values, modes))
            for group in self.groups
        ]


@dataclass(frozen=True)
class ArmCovariance:
    """The covariance of the arms about means and season, by its eigenvectors.

    Args:
        eigenvalues: ``n``, positive.
        modes: ``n x n``, the eigenvectors as columns.
    """

    eigenvalues: Array
    modes: Array

    @classmethod
    def estimate(cls, segments: Sequence[Array]) -> ArmCovariance:
        """Estimate it up to scale from residuals at successive times, which noise does not enter.

        The covariance of the sums of successive residuals less that of their differences is twice
        their symmetric covariance, which has independent noise in neither. Each has the shrinkage
        of Ledoit and Wolf (2004). The result is scaled to the variance of the residuals. Where
        successive residuals hardly depend on one another, it is the covariance of the residuals.

        Args:
            segments: Residuals of each segment, ``T x n``.
        """
        # Imported here since importing scikit-learn takes a second.
        from sklearn.covariance import LedoitWolf

        rows = np.vstack(segments)
        sums = np.vstack([segment[1:] + segment[:-1] for segment in segments])
        differences = np.vstack([segment[1:] - segment[:-1] for segment in segments])
        lagged = LedoitWolf().fit(sums).covariance_ - LedoitWolf().fit(differences).covariance_
        variance = rows.var(axis=0).mean()
        if np.trace(lagged) < 2 * LEAST_CORRELATION * variance * len(lagged):
            return cls.of_modes(*np.linalg.eigh(LedoitWolf().fit(rows).covariance_))
        eigenvalues, modes = np.linalg.eigh(lagged)
        eigenvalues = eigenvalues.clip(min=SMALLEST_START * eigenvalues.max())
        return cls(eigenvalues * variance / eigenvalues.mean(), modes)

    @classmethod
    def of_modes(cls, eigenvalues: Array, modes: Array) -> ArmCovariance:
        """Return it with eigenvalues that are not below :data:`SMALLEST` of the mean one."""
        return cls(eigenvalues.clip(min=SMALLEST * eigenvalues.mean()), modes)

    @property
    def loadings(self) -> Array:
        """The modes of a constant, ``n``."""
        loadings: Array = self.modes.sum(0)
        return loadings


def panel_data(blocks: Sequence[tuple[Array, Array]]) -> PanelData:
    """Return a panel from times and values of its segments, those with the same times together."""
    together: dict[bytes, list[tuple[Array, Array]]] = {}
    for times, values in blocks:
        together.setdefault(times.tobytes(), []).append((times, values))
    # Gaps that differ by rounding are one.
    gaps = np.concatenate([np.diff(times) for times, _ in blocks]).round(9)
    usual = np.median(gaps)
    lags = np.unique(gaps)
    lags = np.concatenate([[lags[np.abs(lags - usual).argmin()]], lags])
    order = {lag: i for i, lag in enumerate(lags.tolist())}
    groups = [
        SegmentGroup(
            same[0][0],
            [order[lag] for lag in np.diff(same[0][0]).round(9).tolist()],
            np.stack([values for _, values in same], axis=-1),
        )
        for same in together.values()
    ]
    return PanelData(groups, lags)
