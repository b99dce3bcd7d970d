"""Maximization of the marginal likelihood of a panel over drift, season and covariances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tvbo.fitting.panel_coefficients import (
    CoefficientModel,
    SegmentGroup,
    prior_variances,
    regressors,
)
from tvbo.fitting.panel_terms import Component, DriftTerms, Season, spectrum
from tvbo.fitting.state_filter import log_likelihoods
from tvbo.observations import provided

Array = NDArray[np.float64]

ROUNDS = 3
"""Rounds of drift, season and covariance, each given the others; later ones change little."""

DIFFERENCE = 1e-5
"""Step of the differences that give gradients, in logarithms."""

START_RIDGE = 5e-4
"""Ridge of the first estimate of a season, as a share of the number of times."""

SMALLEST = 1e-6
"""Smallest eigenvalue of the covariance over arms, as a share of the mean one."""


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
        return self.num_times * self.groups[0].values.shape[1]

    @property
    def span(self) -> float:
        """Length of the longest segment."""
        return max(float(np.ptp(group.times)) for group in self.groups)

    def stacked(self, season: Season | None) -> tuple[Array, Array]:
        """Return all values, ``N x n``, and the regressors of each row, ``N x q``."""
        values, columns = [], []
        for group in self.groups:
            B = regressors(season, group.times)
            for k in range(group.values.shape[2]):
                values.append(group.values[:, :, k])
                columns.append(B)
        return np.vstack(values), np.vstack(columns)

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
    def estimate(cls, residuals: Array) -> ArmCovariance:
        """Estimate it with the shrinkage of Ledoit and Wolf (2004), from ``N x n`` residuals."""
        # Imported here since importing scikit-learn takes a second.
        from sklearn.covariance import LedoitWolf

        eigenvalues, modes = np.linalg.eigh(LedoitWolf().fit(residuals).covariance_)
        return cls(eigenvalues.clip(min=SMALLEST * eigenvalues.mean()), modes)

    @property
    def loadings(self) -> Array:
        """The modes of a constant, ``n``."""
        loadings: Array = self.modes.sum(0)
        return loadings


@dataclass(frozen=True)
class FittedPanel:
    """A model of a panel at its maximum.

    Args:
        season: The season; None if there is none.
        components: The drifting components.
        covariance: The covariance over arms of which their covariances are powers.
        theta: Parameters of :class:`DriftTerms`.
        phi: Parameters of :func:`prior_variances`.
        log_likelihood: Log marginal likelihood, with means and season integrated out.
        mean: Common mean.
        coefficients: ``q x n`` posterior means of the coefficients of the arms.
        converged: Whether the last search converged.
    """

    season: Season | None
    components: list[Component]
    covariance: ArmCovariance
    theta: Array
    phi: Array
    log_likelihood: float
    mean: float
    coefficients: Array
    converged: bool = True

    @property
    def num_parameters(self) -> int:
        """Number of parameters that were maximized, the common mean among them."""
        return len(self.theta) + len(self.phi) + 1

    def terms(self, data: PanelData) -> DriftTerms:
        """Return the drifting components for the gaps of a panel."""
        return DriftTerms(self.components, self.covariance.eigenvalues, data.lags, data.span)

    def coefficient_model(self, data: PanelData) -> tuple[CoefficientModel, Array]:
        """Return the regression of a panel on ones and season, and its prior variances."""
        model = CoefficientModel(
            data.turned(self.covariance.modes),
            self.season,
            self.terms(data).spaces(self.theta[None]),
            self.covariance.loadings,
        )
        logs = np.log(self.covariance.eigenvalues)
        return model, prior_variances(self.season, self.phi, logs)

    def log_likelihood_of(self, data: PanelData) -> float:
        """Return the log marginal likelihood of another panel at the same parameters."""
        model, variances = self.coefficient_model(data)
        return model.solve(variances)[0]


def fit_model(
    data: PanelData,
    season: Season | None,
    components: list[Component],
    covariance: ArmCovariance | None = None,
    start: FittedPanel | None = None,
) -> FittedPanel:
    """Maximize the marginal likelihood of a model.

    Drift, season and covariance are improved in turn. The search for the drift holds the
    coefficients at their posterior means, and accounts for their uncertainty by the determinant of
    their posterior precision, from the spectral density of each mode (Whittle, 1953); the
    likelihood of the result is exact.

    Args:
        data: The panel.
        season: The season; None if there is none.
        components: The drifting components, from which the search starts.
        covariance: The covariance over arms; None estimates it about means and season.
        start: A model from which means and season start.
    """
    is_given = covariance is not None
    coefficients = _first_coefficients(data, season) if start is None else start.coefficients
    theta = variances = None
    phi = None if start is None else start.phi
    for _ in range(ROUNDS - 1 if is_given else ROUNDS):
        residuals = _residual_groups(data, season, coefficients)
        if not is_given:
            covariance = ArmCovariance.estimate(_residuals(data, season, coefficients))
        covariance = provided(covariance)
        terms = DriftTerms(components, covariance.eigenvalues, data.lags, data.span)
        if theta is None:
            theta = terms.start()
        if phi is not None:
            variances = prior_variances(season, phi, terms.log_eigenvalues)
        turned = PanelData(residuals, data.lags).turned(covariance.modes)
        theta, converged = _search_drift(terms, turned, theta, season, variances)
        model = CoefficientModel(
            data.turned(covariance.modes), season, terms.spaces(theta[None]), covariance.loadings
        )
        phi = _search_season(model, season, phi, terms.log_eigenvalues)
        variances = prior_variances(season, phi, terms.log_eigenvalues)
        log_likelihood, mean, _ = model.solve(variances)
        coefficients = (covariance.modes @ model.coefficients(variances)[0]).T
    return FittedPanel(
        season,
        components,
        provided(covariance),
        provided(theta),
        provided(phi),
        log_likelihood,
        mean,
        coefficients,
        converged,
    )


def _search_drift(
    terms: DriftTerms,
    groups: Sequence[SegmentGroup],
    theta: Array,
    season: Season | None,
    variances: Array | None,
) -> tuple[Array, bool]:
    """Return the parameters of the drift at the maximum, and whether the search converged."""
    from scipy.optimize import minimize

    step = terms.lags[0]
    frequencies = np.zeros(1)
    if season is not None:
        frequencies = np.append(frequencies, season.frequencies * step)
    squares = sum(
        group.values.shape[2] * (regressors(season, group.times) ** 2).sum(0) for group in groups
    )

    def descent(point: Array) -> tuple[float, Array]:
        points = np.vstack([point, point + DIFFERENCE * np.eye(len(point))])
        spaces = terms.spaces(points)
        values = sum(log_likelihoods(group.values, group.gaps, spaces) for group in groups)
        if variances is not None:
            information = squares / spectrum(spaces, frequencies)
            values = values - 0.5 * np.log1p(variances * information).sum((1, 2))
        return -values[0], (values[0] - values[1:]) / DIFFERENCE

    low, high = np.array(terms.bounds()).T
    result = minimize(
        descent,
        np.clip(theta, low, high - DIFFERENCE),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxiter": 80, "ftol": 1e-9, "gtol": 1e-2},
    )
    return result.x, bool(result.success)


def _search_season(
    model: CoefficientModel, season: Season | None, phi: Array | None, log_eigenvalues: Array
) -> Array:
    """Return the parameters of :func:`prior_variances` at the maximum."""
    from scipy.optimize import minimize

    scale = float(np.log(np.exp(log_eigenvalues).mean()))
    if phi is None:
        phi = np.array([scale, np.log(0.3), 1.0, np.log(0.3)])[: 1 if season is None else 4]
    bounds = [(scale - 12, scale + 12), (-14.0, 7.0), (0.0, 2.0), (np.log(0.02), np.log(3.0))]
    result = minimize(
        lambda point: -model.solve(prior_variances(season, point, log_eigenvalues))[0],
        phi,
        method="L-BFGS-B",
        bounds=bounds[: len(phi)],
        options={"maxiter": 40},
    )
    found: Array = result.x
    return found


def _first_coefficients(data: PanelData, season: Season | None) -> Array:
    """Return coefficients of the arms by least squares, ``q x n``, with a ridge on the season."""
    values, columns = data.stacked(season)
    ridge = np.full(columns.shape[1], START_RIDGE * len(columns))
    ridge[0] = 0.0
    coefficients: Array = np.linalg.solve(columns.T @ columns + np.diag(ridge), columns.T @ values)
    return coefficients


def _residuals(data: PanelData, season: Season | None, coefficients: Array) -> Array:
    """Return all values less means and season, ``N x n``."""
    values, columns = data.stacked(season)
    return values - columns @ coefficients


def _residual_groups(
    data: PanelData, season: Season | None, coefficients: Array
) -> list[SegmentGroup]:
    """Return the segments less means and season."""
    return [
        replace(
            group,
            values=group.values - (regressors(season, group.times) @ coefficients)[:, :, None],
        )
        for group in data.groups
    ]
