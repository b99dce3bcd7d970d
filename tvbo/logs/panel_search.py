"""Maximization of the marginal likelihood of a panel over drift, season and covariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tvbo.logs.panel_coefficients import CoefficientModel, prior_variances
from tvbo.logs.panel_data import ArmCovariance, PanelData
from tvbo.logs.panel_terms import Component, DriftTerms, spectrum
from tvbo.logs.season import Season
from tvbo.logs.state_filter import filter_modes
from tvbo.quadratic_model import Array

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


from tvbo.logs.state_filter import precision_times

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
    """A model of a panel at its maximum, or where a search for it begins.

    Args:
        season: The season; None if there is none.
        components: The drifting components.
        covariance: The covariance over arms of which their covariances are powers.
        coefficients: ``q x n`` posterior means of the coefficients of the arms.
        theta: Parameters of :class:`DriftTerms`.
        phi: Parameters of :func:`prior_variances`; none before a search.
        log_likelihood: Log marginal likelihood, with means and season integrated out.
        mean: Common mean.
        converged: Whether the last search converged.
    """

    season: Season | None
    components: list[Component]
    covariance: ArmCovariance
    coefficients: Array
    theta: Array
    phi: Array | None = None
    log_likelihood: float = -math.inf
    mean: float = 0.0
    converged: bool = True

    @property
    def num_parameters(self) -> int:
        """Number of parameters that were maximized, the common mean among them."""
        return len(self.theta) + len(self.prior_parameters) + 1

    @property
    def prior_parameters(self) -> Array:
        """Parameters of :func:`prior_variances`; before a search a start."""
        if self.phi is not None:
            return self.phi
        level = [math.log(self.covariance.eigenvalues.mean())]
        return np.array(
            level if self.season is None else [*level, math.log(0.3), 1.0, *self.season.shape]
        )

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
        return model, self.variances(self.prior_parameters)

    def variances(self, phi: Array) -> Array:
        """Return the prior variances of the coefficients of each mode, ``n x q``."""
        return prior_variances(self.season, phi, np.log(self.covariance.eigenvalues))

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
    theta = DriftTerms(components, covariance.eigenvalues, data.lags, data.span).start()
    fit = _one_round(data, FittedPanel(season, components, covariance, coefficients, theta))
    residuals = data.residuals(season, fit.coefficients)
    return _one_round(data, replace(fit, covariance=ArmCovariance.estimate(residuals.segments())))


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
    fit = _one_round(data, replace(base, season=season, coefficients=means, phi=None))
    return _one_round(data, fit)


def fit_model(data: PanelData, starts: Sequence[FittedPanel]) -> FittedPanel:
    """Maximize the marginal likelihood from the best of several starts, at their covariance."""
    start = starts[0]
    if len(starts) > 1:
        scouts = [_search_drift(data, each, SCOUT) for each in starts]
        start = replace(start, theta=min(scouts, key=lambda result: float(result.fun)).x)
    return _one_round(data, start)


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
        better = _one_round(data, replace(fit, covariance=covariance))
        if better.log_likelihood <= fit.log_likelihood:
            break
        fit = better
    return fit


def _one_round(data: PanelData, start: FittedPanel) -> FittedPanel:
    """Maximize over the drift given the coefficients, then over the season given the drift.

    The search for the drift holds the coefficients at their posterior means, and accounts for their
    uncertainty by the determinant of their posterior precision, from the spectral density of each
    mode (Whittle, 1953); the likelihood of the result is exact.
    """
    result = _search_drift(data, start)
    fit = replace(start, theta=result.x, converged=bool(result.success))
    model, _ = fit.coefficient_model(data)
    phi = _search_season(model, fit)
    variances = fit.variances(phi)
    log_likelihood, mean, _ = model.solve(variances)
    coefficients = (fit.covariance.modes @ model.coefficients(variances)[0]).T
    return replace(
        fit, phi=phi, log_likelihood=log_likelihood, mean=mean, coefficients=coefficients
    )


def _search_drift(data: PanelData, start: FittedPanel, max_iterations: int = 80) -> OptimizeResult:
    """Return the result of the search for the parameters of the drift, ``x``."""
    from scipy.optimize import minimize

    terms, season = start.terms(data), start.season
    groups = data.residuals(season, start.coefficients).turned(start.covariance.modes)
    # Before the first search their prior is not known.
    variances = None if start.phi is None else start.variances(start.phi)
    step = terms.lags[0]
    frequencies = np.zeros(1)
    if season is not None:
        frequencies = np.append(frequencies, season.frequencies * step)
    squares = (data.stacked(season)[1] ** 2).sum(0)

    def descent(point: Array) -> tuple[float, Array]:
        points = np.vstack([point, point + DIFFERENCE * np.eye(len(point))])
        spaces = terms.spaces(points)
        filtered = [filter_modes(group.values, group.gaps, spaces) for group in groups]
        values = np.sum([each.log_likelihoods.sum(-1) for each in filtered], axis=0)
        if variances is not None:
            information = squares / spectrum(spaces, frequencies, terms.span / step)
            values = values - 0.5 * np.log1p(variances * information).sum((1, 2))
        return -values[0], (values[0] - values[1:]) / DIFFERENCE

    low, high = np.array(terms.bounds()).T
    return minimize(
        descent,
        np.clip(start.theta, low, high - DIFFERENCE),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxiter": max_iterations, "ftol": 1e-9, "gtol": 1e-2},
    )


def _search_season(model: CoefficientModel, fit: FittedPanel) -> Array:
    """Return the parameters of :func:`prior_variances` at the maximum."""
    from scipy.optimize import minimize

    scale = math.log(fit.covariance.eigenvalues.mean())
    bounds = [(scale - 12, scale + 12)]
    if fit.season is not None:
        bounds += [(-14.0, 7.0), (0.0, 2.0), *fit.season.shape_bounds]
    result = minimize(
        lambda phi: -model.solve(fit.variances(phi))[0],
        fit.prior_parameters,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    found: Array = result.x
    return found


VARIANCE_STEP = 1e-6
"""Relative change of the variances whose effect on the likelihood of each mode is taken."""


def improved_covariance(
    covariance: ArmCovariance, terms: DriftTerms, theta: Array, residuals: PanelData
) -> ArmCovariance:
    r"""Return the covariance over arms after a step of EM.

    The components have the covariance :math:`C = K^b` over the arms, and together the covariance
    ``D`` over time. The step is :math:`C + \frac{2}{T} C G C`, with :math:`G` the derivative of the
    log likelihood with respect to :math:`C`. It has in the modes the entries
    :math:`\frac12 \alpha_i^\top D \alpha_j`, with :math:`\alpha = \Sigma^{-1} y` by mode; on the
    diagonal it is that with respect to the variance of a mode.

    Args:
        covariance: The covariance before, :math:`K`.
        terms: The drifting components.
        theta: Their parameters.
        residuals: The panel less means and season.
    """
    modes = covariance.modes
    groups = residuals.turned(modes)
    space = terms.spaces(theta[None])
    larger = replace(space, stationary=space.stationary * (1 + VARIANCE_STEP))
    power = theta[-2]
    variances = covariance.eigenvalues**power
    gradient, gained = np.zeros_like(modes), np.zeros_like(variances)
    for group in groups:
        alpha = precision_times(group.values, group.gaps, space)
        in_time = terms.covariance_in_time(theta, group.times)
        for k in range(alpha.shape[-1]):
            gradient += 0.5 * alpha[..., k].T @ (in_time @ alpha[..., k])
        one, other = (filter_modes(group.values, group.gaps, each) for each in (space, larger))
        gained += (other.log_likelihoods - one.log_likelihoods)[0]
    np.fill_diagonal(gradient, gained / (VARIANCE_STEP * variances))
    step = 2 / residuals.num_times * variances[:, None] * gradient * variances
    variances, turned = np.linalg.eigh(np.diag(variances) + step)
    return ArmCovariance.of_modes(variances.clip(min=0.0) ** (1 / power), modes @ turned)
