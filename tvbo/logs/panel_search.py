"""Maximization of the marginal likelihood of a panel over drift, season and covariances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tvbo.logs.panel_coefficients import CoefficientModel, prior_variances
from tvbo.logs.panel_data import ArmCovariance, PanelData, SegmentGroup, regressors
from tvbo.logs.panel_em import improved_covariance
from tvbo.logs.panel_terms import Component, DriftTerms, spectrum
from tvbo.logs.season import Season
from tvbo.logs.state_filter import filter_modes

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Array = NDArray[np.float64]

EM_ROUNDS, EM_STEPS = 4, 2
"""Largest number of rounds that improve the covariance over arms, and steps of EM in each."""

START_RIDGE = 5e-4
"""Ridge of the first estimate of a season, as a share of the number of times."""

SCOUT = 12
"""Iterations from each of several starts, before the best is continued."""

DIFFERENCE = 1e-5
"""Step of the differences that give gradients, in logarithms."""


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


def fit_first_model(
    data: PanelData, season: Season | None, components: list[Component]
) -> FittedPanel:
    """Maximize the marginal likelihood, with an estimate of the covariance of the arms.

    It is that of successive residuals about means and season (:meth:`ArmCovariance.estimate`),
    first by least squares, then of this model. With the noise in it, a component without memory
    would seem to explain the series better.

    Args:
        data: The panel.
        season: The season; None if there is none.
        components: The drifting components, from which the search starts.
    """
    values, columns = data.stacked(season)
    ridge = np.full(columns.shape[1], START_RIDGE * len(columns))
    ridge[0] = 0.0
    solved = np.linalg.solve(columns.T @ columns + np.diag(ridge), columns.T @ values)
    coefficients = np.asarray(solved, dtype=np.float64)
    covariance = ArmCovariance.estimate(data.residuals(season, coefficients).segments())
    fit = _one_round(data, season, components, covariance, coefficients, None, None)
    residuals = data.residuals(season, fit.coefficients)
    return _next_round(data, fit, ArmCovariance.estimate(residuals.segments()))


def fit_season(data: PanelData, season: Season, base: FittedPanel) -> FittedPanel:
    """Maximize the marginal likelihood with a season, at the covariance of a model without one.

    With equal covariances over arms, the likelihoods differ by what the season explains.

    Args:
        data: The panel.
        season: The season.
        base: A model without a season.
    """
    means = np.vstack(
        [base.coefficients, np.zeros((len(season.frequencies), base.coefficients.shape[1]))]
    )
    fit = _one_round(data, season, base.components, base.covariance, means, base.theta, None)
    return _next_round(data, fit, fit.covariance)


def fit_model(
    data: PanelData, components: list[Component], base: FittedPanel, starts: Sequence[Array]
) -> FittedPanel:
    """Maximize the marginal likelihood of other components, from the covariance of a base.

    Args:
        data: The panel.
        components: The drifting components.
        base: A model whose season is taken, and whose covariance and means are the start.
        starts: Starts of the search for the parameters of the drift.
    """
    terms = DriftTerms(components, base.covariance.eigenvalues, data.lags, data.span)
    residuals = data.residuals(base.season, base.coefficients)
    turned = residuals.turned(base.covariance.modes)
    variances = prior_variances(base.season, base.phi, terms.log_eigenvalues)
    start = starts[0]
    if len(starts) > 1:
        scouts = [
            _search_drift(terms, turned, start, base.season, variances, SCOUT) for start in starts
        ]
        start = min(scouts, key=lambda result: float(result.fun)).x
    return _one_round(
        data, base.season, components, base.covariance, base.coefficients, start, base.phi
    )


def improved_fit(data: PanelData, fit: FittedPanel) -> FittedPanel:
    """Return a model with a covariance of the arms that is improved by steps of EM.

    The estimate by successive residuals takes the times as independent; where the drift is slow
    they are not. There are steps as long as the likelihood increases; few of them, since the
    covariance has many more parameters than the drift.

    Args:
        data: The panel.
        fit: The model.
    """
    for _ in range(EM_ROUNDS):
        residuals = data.residuals(fit.season, fit.coefficients)
        covariance, terms = fit.covariance, fit.terms(data)
        for _ in range(EM_STEPS):
            covariance = improved_covariance(covariance, terms, fit.theta, residuals)
            terms = DriftTerms(fit.components, covariance.eigenvalues, data.lags, data.span)
        better = _next_round(data, fit, covariance)
        if better.log_likelihood <= fit.log_likelihood:
            break
        fit = better
    return fit


def _next_round(data: PanelData, fit: FittedPanel, covariance: ArmCovariance) -> FittedPanel:
    return _one_round(
        data, fit.season, fit.components, covariance, fit.coefficients, fit.theta, fit.phi
    )


def _one_round(
    data: PanelData,
    season: Season | None,
    components: list[Component],
    covariance: ArmCovariance,
    coefficients: Array,
    theta: Array | None,
    phi: Array | None,
) -> FittedPanel:
    """Maximize over the drift given the coefficients, then over the season given the drift.

    The search for the drift holds the coefficients at their posterior means, and accounts for their
    uncertainty by the determinant of their posterior precision, from the spectral density of each
    mode (Whittle, 1953); the likelihood of the result is exact.
    """
    terms = DriftTerms(components, covariance.eigenvalues, data.lags, data.span)
    residuals = data.residuals(season, coefficients)
    variances = None if phi is None else prior_variances(season, phi, terms.log_eigenvalues)
    result = _search_drift(
        terms,
        residuals.turned(covariance.modes),
        terms.start() if theta is None else theta,
        season,
        variances,
    )
    theta, converged = result.x, bool(result.success)
    model = CoefficientModel(
        data.turned(covariance.modes), season, terms.spaces(theta[None]), covariance.loadings
    )
    phi = _search_season(model, season, phi, terms.log_eigenvalues)
    variances = prior_variances(season, phi, terms.log_eigenvalues)
    log_likelihood, mean, _ = model.solve(variances)
    coefficients = (covariance.modes @ model.coefficients(variances)[0]).T
    return FittedPanel(
        season, components, covariance, theta, phi, log_likelihood, mean, coefficients, converged
    )


def _search_drift(
    terms: DriftTerms,
    groups: Sequence[SegmentGroup],
    theta: Array,
    season: Season | None,
    variances: Array | None,
    max_iterations: int = 80,
) -> OptimizeResult:
    """Return the result of the search for the parameters of the drift, ``x``."""
    from scipy.optimize import minimize

    step = terms.lags[0]
    frequencies = np.zeros(1)
    if season is not None:
        frequencies = np.append(frequencies, season.frequencies * step)
    counts = [group.values.shape[2] for group in groups]
    columns = [regressors(season, group.times) for group in groups]
    squares = np.sum([c * (B**2).sum(0) for c, B in zip(counts, columns, strict=True)], axis=0)

    def descent(point: Array) -> tuple[float, Array]:
        points = np.vstack([point, point + DIFFERENCE * np.eye(len(point))])
        spaces = terms.spaces(points)
        values = np.sum(
            [
                filter_modes(group.values, group.gaps, spaces).log_likelihoods.sum(-1)
                for group in groups
            ],
            axis=0,
        )
        if variances is not None:
            information = squares / spectrum(spaces, frequencies, terms.span / step)
            values = values - 0.5 * np.log1p(variances * information).sum((1, 2))
        return -values[0], (values[0] - values[1:]) / DIFFERENCE

    low, high = np.array(terms.bounds()).T
    return minimize(
        descent,
        np.clip(theta, low, high - DIFFERENCE),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxiter": max_iterations, "ftol": 1e-9, "gtol": 1e-2},
    )


def _search_season(
    model: CoefficientModel, season: Season | None, phi: Array | None, log_eigenvalues: Array
) -> Array:
    """Return the parameters of :func:`prior_variances` at the maximum."""
    from scipy.optimize import minimize

    scale = float(np.log(np.exp(log_eigenvalues).mean()))
    if phi is None:
        phi = np.array([scale])
        if season is not None:
            phi = np.concatenate([phi, [np.log(0.3), 1.0], season.shape])
    bounds = [(scale - 12, scale + 12), (-14.0, 7.0), (0.0, 2.0)]
    if season is not None:
        bounds += season.shape_bounds
    result = minimize(
        lambda point: -model.solve(prior_variances(season, point, log_eigenvalues))[0],
        phi,
        method="L-BFGS-B",
        bounds=bounds[: len(phi)],
        options={"maxiter": 40},
    )
    found: Array = result.x
    return found
