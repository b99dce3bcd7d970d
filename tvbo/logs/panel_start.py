"""First estimates for the fits of a panel, and the weights of their priors."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize

from tvbo.logs.panel_cells import Cells, Regressors, columns_of, log_volume, posterior_precision
from tvbo.logs.panel_forms import CommonForm, Form, IndependentForm, ledoit_wolf, prior_weight
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

LEAST_CORRELATION = 0.2
"""Mean correlation of successive residuals from which the covariance is estimated by them; with
less, the error of that estimate exceeds what the noise adds."""

SMALLEST_START = 1e-3
"""Smallest eigenvalue of the first estimate of that covariance, as a share of the largest."""

AMPLITUDES = (math.log(1e-4), math.log(1e3))
"""Range of the logarithm of a season's variance, where the covariance over arms has the power of
the season's."""

SMALLEST_VARIANCE = 1e-6
"""Least variance of a mode, as a share of the largest, of which that of a season is a power."""

SMALLEST_WEIGHT = 1e-9
"""Smallest share of a function in the prior variance of a season."""

DIFFERENCE = 1e-5
"""Step of the differences by the shape of a season."""


def season_regressors(cells: Cells, season: Season, form: Form, theta: Array) -> Regressors:
    r"""Return the functions of means and season, with prior variances by empirical Bayes.

    A function of the season has in mode ``i`` the prior variance :math:`g w_j \lambda_i^b`, with
    :math:`\lambda_i` the mode's variance and :math:`w` the shape of the season. Amplitude, power
    and shape maximize the marginal likelihood of the modes, given drift and noise.

    Args:
        cells: The panel.
        season: The season, in units of the usual gap.
        form: A form of drift that arms share.
        theta: Its parameters at the maximum without a season.
    """
    assert isinstance(form, CommonForm)
    columns = columns_of(season, cells.times)
    modes, products = (x.numpy() for x in form.white_products(theta, columns, filled_in(cells)))
    variances = form.variances_along(theta, modes)
    logs = np.log(variances.clip(SMALLEST_VARIANCE * variances.max()))
    information, projected = products[..., :-1], products[..., -1]

    def prior(point: Array) -> Array:
        weights = season.weights(point[2:]).clip(min=SMALLEST_WEIGHT)
        precisions = np.zeros(projected.shape)
        precisions[:, 1:] = np.exp(-point[0] - point[1] * logs)[:, None] / weights
        return precisions

    def solve(precisions: Array) -> tuple[Array, Array]:
        """Return the coefficients of the modes, and their posterior variances."""
        inverses = np.linalg.inv(posterior_precision(information, precisions))
        solved: Array = (inverses @ projected[..., None])[..., 0]
        return solved, np.einsum("ijj->ij", inverses)

    def descent(point: Array) -> tuple[float, list[float]]:
        precisions = prior(point)
        solved, variances = solve(precisions)
        value = -0.5 * float((projected * solved).sum()) - log_volume(information, precisions)
        by_logs = 0.5 * ((solved**2 + variances) * precisions - 1)[:, 1:]
        slope = [-float(by_logs.sum()), -float(logs @ by_logs.sum(1))]
        for step in DIFFERENCE * np.eye(len(season.shape)):
            ends = (np.log(prior(point + np.append([0, 0], h))[0, 1:]) for h in (step, -step))
            slope.append(float(by_logs.sum(0) @ np.subtract(*ends)) / (2 * DIFFERENCE))
        return value, slope

    start = [math.log(0.3), 1.0, *season.shape]
    bounds = [AMPLITUDES, (0.0, 2.0), *season.shape_bounds]
    precisions = prior(minimize(descent, start, jac=True, method="L-BFGS-B", bounds=bounds).x)
    coefficients = (modes @ solve(precisions)[0]).T
    return Regressors(season, columns, modes, precisions, coefficients)


def information_on(regressors: Regressors, form: Form, theta: Array) -> Array:
    """Return about how precisely a panel tells means and season, in the modes, ``n x q x q``.

    Args:
        regressors: Means and season.
        form: The form of drift.
        theta: Its parameters.
    """
    directions, information = form.white_products(theta, regressors.columns)
    shares = np.linalg.solve(directions.numpy(), regressors.modes) ** 2
    return np.einsum("im,ijk->mjk", shares, information.numpy())


def filled_in(residuals: Cells) -> Array:
    """Return a panel ``T x n`` in which cells without a value are between their neighbours.

    Arms without any are zero.
    """
    if residuals.is_full:
        return residuals.values
    import pandas as pd

    table = pd.DataFrame(residuals.values).interpolate(limit_direction="both")
    return table.fillna(0.0).to_numpy(copy=True)


def covariance_weight(cells: Cells) -> tuple[float, float]:
    r"""Return the weight of the prior of the covariance over arms, and the noise.

    The derivatives of the likelihood by the states, with each arm by itself, are what the panel
    says of what is new at each time. Their covariance is shrunk to its diagonal as by Ledoit and
    Wolf (2004), with the error of its estimate times :math:`c = 1 + 2 \sum_k \rho_k^2`, since those
    of successive times are correlated where there is noise; and they tell as much as
    :math:`c (q r)^2` states would that were observed, where the new has variance ``q``, and the
    derivative ``r``.

    Args:
        cells: The panel about the centre of each arm.

    Returns:
        The weight in steps of time, and the noise variance as a typical share of an arm's.
    """
    form = IndependentForm(cells)
    alone = form.dynamics(form.start)
    rates, variances = alone.rates.numpy(), alone.variances.numpy()
    filtered, outputs = form.filter(form.start, cells.values)
    (slopes,) = torch.autograd.grad(
        filtered.log_likelihood(outputs.requires_grad_()).sum(), outputs
    )
    # What is new in a state moves all later values of its segment.
    decays = np.append(np.exp(-0.5 * np.outer(cells.lags, rates)), np.zeros((1, len(rates))), 0)
    states, later = slopes[..., 0].numpy(), 0.0
    for row, decay in zip(states[::-1], decays[cells.gaps[::-1]], strict=True):
        row += later
        later = decay * row
    squares = np.square(states).mean(0)
    varies = squares > 0
    states = states[:, varies] / np.sqrt(squares[varies])
    noise, factor = 2 / math.sqrt(states.size), 1.0
    for k in range(1, len(states) // 4):
        correlation = float((states[k:] * states[:-k]).mean())
        if correlation < noise:
            break
        factor += 2 * correlation**2
    known = factor * float(np.median(-np.expm1(-rates) * variances * squares)) ** 2
    _, shrinkage = ledoit_wolf(states)
    weight = prior_weight(len(states) * min(1.0, known), min(1.0, factor * shrinkage))
    return weight, float(np.median(alone.noise.numpy() / cells.deviations**2))


def first_covariance(residuals: Cells) -> Array:
    """Return a covariance over arms by residuals at successive times.

    The covariance of the sums of successive residuals less that of their differences is four times
    their symmetric lagged covariance, which independent noise does not enter. Where successive
    residuals hardly depend on one another, it is the covariance of the residuals. Cells without a
    value have those between their neighbours.

    Args:
        residuals: The panel about means and season.
    """
    rows = filled_in(residuals)
    follows = ~residuals.starts[1:]
    later, earlier = rows[1:][follows], rows[:-1][follows]
    lagged = 0.25 * (ledoit_wolf(later + earlier)[0] - ledoit_wolf(later - earlier)[0])
    variance = float(rows.var(axis=0).mean())
    if np.trace(lagged) < LEAST_CORRELATION * variance * len(lagged):
        return ledoit_wolf(rows)[0] + SMALLEST_START * variance * np.eye(len(lagged))
    eigenvalues, modes = np.linalg.eigh(lagged)
    eigenvalues = eigenvalues.clip(min=SMALLEST_START * eigenvalues.max())
    return np.asarray((modes * eigenvalues) @ modes.T, np.float64)
