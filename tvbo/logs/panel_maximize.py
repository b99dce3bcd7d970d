"""Joint maximization of drift, covariances, means and season of a panel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tvbo.logs.panel_cells import Cells, Regressors, log_volume
from tvbo.logs.panel_forms import Form
from tvbo.logs.state_space import KalmanFilter
from tvbo.quadratic_model import Array

MAX_ROUNDS, MAX_ITERATIONS, ROUND = 20, 60, 20
"""Largest numbers of rounds of L-BFGS and of iterations in each, and the gain below which there is
no further round, as a multiple of that of an iteration: one iteration may gain little by chance."""

MEMORY = 20
"""Steps of which L-BFGS keeps the change of the gradient."""


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
    integrated out: at their maximum what drifts slowly is taken for a mean. All are searched
    together by L-BFGS, the coefficients in units of their posterior deviations.

    Args:
        form: The form of drift.
        cells: The panel, in units of each arm's deviation.
        regressors: The functions of means and season.
        coefficients: ``q x n``, at which the search starts.
        theta: Parameters at which it starts; None are the form's own.
        enough: Gain in log density of an iteration below which the search ends.
        num_held: Number of first parameters that stay as they are.
        num_rounds: Largest number of rounds of iterations.
    """
    from scipy.optimize import minimize

    theta = form.start if theta is None else theta
    bounds = form.bounds()
    theta = theta.clip(*bounds.T)
    bounds[:num_held] = theta[:num_held, None]
    free = np.full((coefficients.size, 2), [-math.inf, math.inf])
    values, columns = torch.as_tensor(cells.values), torch.as_tensor(regressors.columns)
    start, sizes = torch.as_tensor(coefficients), [len(theta), coefficients.size]
    directions, filtered = form.separated(theta)
    information = white_products(filtered, regressors.columns)
    root = regressors.posterior_root(torch.as_tensor(information), directions) / math.sqrt(
        len(values)
    )

    def moved_by(steps: Tensor) -> Tensor:
        solved = torch.linalg.solve_triangular(
            root.mT, steps.reshape(*root.shape[:2], 1), upper=True
        )
        moved: Tensor = start + (directions @ solved[..., 0]).mT
        return moved

    def descent(point: Array) -> tuple[float, Array]:
        at = torch.tensor(point, requires_grad=True)
        own, steps = at.split(sizes)
        moved = moved_by(steps)
        try:
            value = form.log_likelihood(own, values - columns @ moved)
        except torch.linalg.LinAlgError:
            return math.inf, np.zeros_like(point)
        value = value + form.log_prior(own) + regressors.log_prior(moved)
        value.backward()
        assert at.grad is not None
        return -value.item(), -at.grad.numpy()

    point, best = np.append(theta, np.zeros(coefficients.size)), -math.inf
    for _ in range(num_rounds):
        found = minimize(
            descent,
            point,
            jac=True,
            method="L-BFGS-B",
            bounds=np.concatenate([bounds, free]),
            options={
                "maxiter": MAX_ITERATIONS,
                "ftol": enough / cells.num_values,
                "gtol": 1e-3,
                "maxcor": MEMORY,
            },
        )
        point, before, best = found.x, best, -float(found.fun)
        converged = best - before < ROUND * enough
        if converged:
            break
    theta, steps = np.split(point, [len(theta)])
    moved = moved_by(torch.as_tensor(steps)).numpy()
    return Maximum(form, theta, regressors, moved, best, converged)


def white_products(filtered: KalmanFilter, columns: Array, series: Array | None = None) -> Array:
    """Return products of whitened columns with each other, and with a series of each model.

    Args:
        filtered: ``b`` models with one output.
        columns: ``T x q``, the same for all models.
        series: ``T x b``, or None.

    Returns:
        ``b x q x q``, or ``b x q x (q + 1)``.
    """
    shared = np.broadcast_to(
        columns[:, None], (len(columns), filtered.observed.shape[1], columns.shape[1])
    )
    if series is not None:
        shared = np.concatenate([shared, series[..., None]], axis=-1)
    with torch.no_grad():
        white = filtered.whitened(torch.as_tensor(shared.copy()).unsqueeze(2))[:, :, 0].numpy()
    products: Array = np.einsum(
        "tij,tik->ijk", white[..., : columns.shape[1]], white, optimize=True
    )
    return products
