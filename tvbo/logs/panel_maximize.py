"""Joint maximization of drift, covariances, means and season of a panel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tvbo.logs.panel_cells import Cells, Regressors, log_volume
from tvbo.logs.panel_forms import Form, IndependentForm
from tvbo.logs.state_space import KalmanFilter
from tvbo.quadratic_model import Array

MAX_ROUNDS, MAX_ITERATIONS, ROUND = 20, 60, 20
"""Largest numbers of rounds and of iterations in each, and the gain below which there is no further
round, as a multiple of that of an iteration."""

NEWTON_DAMPING, NEWTON_STEP, DIFFERENCE = 0.1, 2.0, 1e-4
"""What is added to the curvatures of an arm at first, the largest step, and that of the
differences which give curvatures."""

MAX_SOLVES, SOLVED = 60, 1e-6
"""Iterations of conjugate gradients, and the relative residual at which they end."""


@dataclass(frozen=True)
class Maximum:
    """The maximum of the penalized likelihood of a form of drift, with a season or without.

    Args:
        form: The form.
        theta: Its parameters.
        regressors: The functions of means and season.
        coefficients: ``q x n``, of means and season.
        objective: Log likelihood, with the means integrated out, plus the log densities of the
            priors.
        converged: Whether the search converged.
    """

    form: Form
    theta: Array
    regressors: Regressors
    coefficients: Array
    objective: float
    converged: bool

    @property
    def num_parameters(self) -> int:
        """Number of parameters that BIC counts: of the drift, and of the season's prior."""
        season = self.regressors.season
        of_season = 0 if season is None else 2 + len(season.shape)
        return self.form.num_counted + of_season

    def evidence(self, num_values: int) -> float:
        """Return the log marginal likelihood over the season less the penalty of BIC."""
        volume = log_volume(self.regressors.information, self.regressors.precisions)
        return self.objective + volume - 0.5 * self.num_parameters * math.log(num_values)


def maximize(
    form: Form,
    cells: Cells,
    regressors: Regressors,
    coefficients: Array,
    theta: Array | None = None,
    enough: float = 1e-4,
    num_held: int = 0,
    num_rounds: int = MAX_ROUNDS,
) -> Maximum:
    """Maximize the penalized likelihood over a form's parameters, and means and season.

    The likelihood is the restricted one (Patterson, Thompson, 1971), in which the means are
    integrated out: at their maximum what drifts slowly is taken for a mean. Given the parameters
    the coefficients solve a linear system; given those, the parameters are searched by L-BFGS, of
    independent arms by Newton's method for each. Each round increases the same objective.

    Args:
        form: The form of drift.
        cells: The panel, in units of each arm's deviation.
        regressors: The functions of means and season.
        coefficients: ``q x n``, at which the search starts.
        theta: Parameters at which it starts; None are the form's own.
        enough: Gain in log density of an iteration below which the search ends.
        num_held: Number of first parameters that stay as they are.
        num_rounds: Largest number of rounds.
    """
    from scipy.optimize import minimize

    theta = form.start if theta is None else theta
    bounds = form.bounds()
    low = np.array([-math.inf if each is None else each for each, _ in bounds])
    high = np.array([math.inf if each is None else each for _, each in bounds])
    theta = theta.clip(low, high)
    for i in range(num_held):
        bounds[i] = (theta[i], theta[i])
    best, converged = -math.inf, False
    scale = float(cells.num_values)
    for _ in range(num_rounds):
        residuals = cells.values - regressors.columns @ coefficients

        def descent(point: Array, residuals: Array = residuals) -> tuple[float, Array]:
            filtered = form.filter(residuals, cells.gaps, point)
            gradient = filtered.gradient(form.outputs(residuals, point), form.integrates_means)
            prior, by_prior = form.log_prior(point)
            chained = form.chain(point, gradient, cells.gaps)
            return -(gradient.log_likelihood.sum() + prior), -(chained + by_prior)

        if isinstance(form, IndependentForm):
            theta = _search_by_arm(form, cells, residuals, theta, enough)
        else:
            theta = minimize(
                descent,
                theta,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={
                    "maxiter": MAX_ITERATIONS,
                    "ftol": enough / scale,
                    "gtol": 1e-3,
                    "maxcor": 20,
                },
            ).x
        filtered = form.filter(residuals, cells.gaps, theta)
        coefficients = solve(form, filtered, cells, regressors, theta, coefficients)
        residuals = cells.values - regressors.columns @ coefficients
        outputs = form.outputs(residuals, theta)
        value = float(filtered.gradient(outputs, form.integrates_means).log_likelihood.sum())
        value += form.log_prior(theta)[0] + regressors.log_prior(coefficients)
        converged = value - best < ROUND * enough
        best = max(best, value)
        if converged:
            break
    return Maximum(form, theta, regressors, coefficients, best, converged)


def _search_by_arm(
    form: IndependentForm, cells: Cells, residuals: Array, theta: Array, enough: float
) -> Array:
    """Return the parameters of the maximum for each arm, by Newton's method for all at once.

    Where the likelihood is not concave, the curvatures count as if it were (Dauphin et al., 2014).
    """
    low, high = np.array(form.bounds()).T.reshape(2, 3, -1)
    outputs = form.outputs(residuals, theta)

    def climb(point: Array) -> tuple[Array, Array]:
        """Return the log likelihood of each arm, and its derivatives ``3 x n``."""
        gradient = form.filter(residuals, cells.gaps, point.ravel()).gradient(outputs, True)
        chained = form.chain(point.ravel(), gradient, cells.gaps)
        return gradient.log_likelihood, chained.reshape(point.shape)

    theta = theta.reshape(low.shape)
    value, slope = climb(theta)
    damping = np.full(len(value), NEWTON_DAMPING)
    for _ in range(MAX_ITERATIONS):
        curvature = np.empty((len(value), 3, 3))
        for j in range(3):
            moved = theta.copy()
            moved[j] += np.where(moved[j] + DIFFERENCE > high[j], -DIFFERENCE, DIFFERENCE)
            curvature[:, j] = ((climb(moved)[1] - slope) / (moved[j] - theta[j])).T
        is_held = ((theta <= low) & (slope < 0) | (theta >= high) & (slope > 0)).T
        curvature = 0.5 * (curvature + curvature.swapaxes(1, 2))
        curvature = np.where(is_held[:, None] | is_held[:, :, None], 0.0, curvature)
        sizes, axes = np.linalg.eigh(curvature)
        free = np.where(is_held, 0.0, slope.T)[..., None]
        along = (axes.swapaxes(1, 2) @ free)[..., 0] / (np.abs(sizes) + damping[:, None])
        step = (axes @ along[..., None])[..., 0].clip(-NEWTON_STEP, NEWTON_STEP).T
        moved = (theta + step).clip(low, high)
        promised = ((moved - theta) * slope).sum(0)
        found, its_slope = climb(moved)
        is_better = found > value
        damping *= np.where(is_better, 0.1, 10.0)
        gain = np.where(is_better, found - value, 0.0)
        theta, slope = np.where(is_better, moved, theta), np.where(is_better, its_slope, slope)
        value = value + gain
        # An arm that was not better is tried again with a shorter step.
        if gain.sum() < enough and (promised < enough / len(value)).all():
            break
    return theta.ravel()


def solve(
    form: Form,
    filtered: KalmanFilter,
    cells: Cells,
    regressors: Regressors,
    theta: Array,
    start: Array,
) -> Array:
    """Return the coefficients of means and season at the maximum, by conjugate gradients."""
    from scipy.sparse.linalg import LinearOperator, cg

    columns, shape = regressors.columns, start.shape
    missing = np.isnan(cells.values)

    def gradient(values: Array) -> Array:
        outputs = form.outputs(np.where(missing, np.nan, values), theta)
        product: Array = columns.T @ form.arms(filtered.precision_times(outputs), theta)
        return product

    def precision_times(flat: Array) -> Array:
        coefficients = flat.reshape(shape)
        product = gradient(columns @ coefficients) + regressors.precision_times(coefficients)
        return product.ravel()

    def solve_roughly(flat: Array) -> Array:
        return regressors.solve_roughly(flat.reshape(shape)).ravel()

    residual = gradient(cells.values - columns @ start) - regressors.precision_times(start)
    size = (start.size, start.size)
    change, _ = cg(
        LinearOperator(size, matvec=precision_times, dtype=float),
        residual.ravel(),
        rtol=SOLVED,
        maxiter=MAX_SOLVES,
        M=LinearOperator(size, matvec=solve_roughly, dtype=float),
    )
    return start + np.asarray(change, np.float64).reshape(shape)
