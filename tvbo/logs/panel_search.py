"""The fits of a panel: maxima of the penalized likelihood of forms of drift with seasons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from scipy.optimize import brentq, minimize
from scipy.special import chdtri
from torch import Tensor

from tvbo.logs.forms import EXPONENTIAL, Forms
from tvbo.logs.panel_cells import Cells, Regressors, Units, columns_of, log_volume
from tvbo.logs.panel_dynamics import PanelModel
from tvbo.logs.panel_forms import CommonForm, Form, IndependentForm, VectorForm
from tvbo.logs.panel_play import Game, one_arm_scores
from tvbo.logs.panel_start import (
    covariance_weight,
    filled_in,
    first_covariance,
    information_on,
    season_regressors,
)
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

INDEPENDENT, VECTOR = IndependentForm.name, VectorForm.name

ROUGH, FINE = 2e-2, 3e-4
"""Gains in log density of an iteration below which a search ends: of the fits that are compared,
and of the one that is taken."""

SCORED = 0.75
"""Share of the log after which forms are scored; what is played after another share is as long."""

SPREADS = (4.0, 0.25)
"""Factors between the rates of a sum of kernels from which its search begins again."""

ROUGH_ITERATIONS, VECTOR_ITERATIONS = 120, 20
"""Largest number of iterations of a search whose result is compared or continued, and of a vector
autoregression, which many more take no nearer to what follows."""

FIRST_STEP, RATE_TOLERANCE, ROUGH_PROFILE = 0.3, 0.02, 1e-2
"""First step outwards in the logarithm of the rate, to an end of its interval, the tolerance there,
and the gain at which the search at a rate ends."""

MAX_ITERATIONS, AGAIN = 3000, 20
"""Largest number of iterations of L-BFGS, and the gain of all of them from which it begins again,
as a multiple of that of the last one, which may gain little by chance."""

MEMORY = 40
"""Steps of which L-BFGS keeps the change of the gradient."""


@dataclass(frozen=True)
class Maximum:
    """The maximum of the penalized likelihood of a form of drift, with a season or without.

    Args:
        form: The form.
        theta: Its parameters.
        regressors: The functions of means and season, with their coefficients there.
        objective: Log likelihood, with the means integrated out, plus the log densities of the
            priors.
        converged: Whether the search converged.
        num_values: Number of values.
    """

    form: Form
    theta: Array
    regressors: Regressors
    objective: float
    converged: bool
    num_values: int

    @property
    def num_parameters(self) -> int:
        """Number of parameters that BIC counts: of the drift, and of the season's prior."""
        season = self.regressors.season
        of_season = 0 if season is None else 2 + len(season.shape)
        return self.form.num_counted + of_season

    @cached_property
    def evidence(self) -> float:
        """Log marginal likelihood over the season less the penalty of BIC."""
        information = information_on(self.regressors, self.form, self.theta)
        volume = log_volume(information, self.regressors.precisions)
        return self.objective + volume - 0.5 * self.num_parameters * math.log(self.num_values)

    def model(self, units: Units) -> PanelModel:
        """Return the model in the user's units."""
        season = self.regressors.season
        # In the order in which a file is read, so that it predicts the same to the last digit.
        coefficients = np.multiply(self.regressors.coefficients, units.value, order="C")
        coefficients[0] += units.center
        return PanelModel(
            self.form.dynamics(self.theta, units),
            None if season is None else season.in_unit_of_time(1 / units.time),
            coefficients,
        )


class PanelSearch:
    """The fits of a panel.

    Args:
        cells: The panel about the centre of each arm, in a unit in which arms have a mean variance
            of one, with outliers replaced.
        forms: Forms of drift that all arms share.
        units: Its units.
        on_step: Called with the name of each fit.
        whole: Fits of the whole panel, where this is a part of it: where searches of the drift
            begin. Means and season are of the part alone, which is to predict what follows.

    Attributes:
        season: The season without which the prior of the covariance was estimated, or None.
        messages: Remarks on the search.
    """

    def __init__(
        self,
        cells: Cells,
        forms: Forms,
        units: Units,
        on_step: Callable[[str], None],
        whole: PanelSearch | None = None,
    ):
        self.cells, self.forms, self.units = cells, forms, units
        self.on_step, self.whole = on_step, whole
        # The same prior for all forms and seasons, so that they can be compared.
        self.of_panel = self.weight, self.noise = covariance_weight(cells)
        self.season: Season | None = None
        self.fits: dict[tuple[str, Season | None], Maximum] = {}
        self.parts: dict[int, PanelSearch] = {}
        self._scores: dict[tuple[str, Season | None], Array] = {}
        self.messages: list[str] = []

    def set_prior(self, season: Season | None) -> None:
        """Estimate the prior of the covariance without a season, and discard the fits before.

        A season that is not removed counts as drift without noise. The weight is at most that of
        the whole panel, since arms that share little but the season may differ in variance.

        Args:
            season: The season that is removed from the panel; None: of the panel as it is.
        """
        weight, noise = self.of_panel
        if season is not None:
            drift = self.fit(EXPONENTIAL, None)
            regressors = season_regressors(self.cells, season, drift.form, drift.theta)
            without, noise = covariance_weight(regressors.removed_from(self.cells))
            weight = min(weight, without)
        self.weight, self.noise = weight, noise
        self.season, self.fits, self.parts, self._scores = season, {}, {}, {}

    def polish(self, found: Maximum) -> Maximum:
        """Continue the search of a fit to its maximum."""
        form, tried = found.form, [found]
        if isinstance(form, CommonForm) and len(form.kernels) > 1:
            # Sums of kernels have several maxima.
            for factor in SPREADS:
                theta = form.spread(found.theta, factor)
                tried.append(self.maximize(form, found.regressors, theta, 0.1, ROUGH_ITERATIONS))
        best = max(tried, key=attrgetter("objective"))
        return self.maximize(form, best.regressors, best.theta, FINE)

    def fit(self, name: str, season: Season | None) -> Maximum:
        """Fit a form of drift with a season or without, roughly, from first estimates."""
        if (name, season) in self.fits:
            return self.fits[name, season]
        # A vector autoregression starts at the independent arms, and takes long on the whole.
        start = None if self.whole is None or name == VECTOR else self.whole.fit(name, season)
        if name != EXPONENTIAL:
            # All forms have the prior of the season that exponential decay has.
            base = self.fit(EXPONENTIAL, season)
            regressors = base.regressors
        elif season is not None:
            # In the modes of what drifts and repeats: those of the drift beside a season are
            # uncertain where it is small, and a season spread over them has too little evidence.
            base = self.fit(EXPONENTIAL, None)
            regressors = season_regressors(self.cells, season, base.form, base.theta)
        else:
            means = filled_in(self.cells).mean(axis=0, keepdims=True)
            base, n = None, means.size
            columns = columns_of(None, self.cells.times)
            regressors = Regressors(None, columns, np.eye(n), np.zeros((n, 1)), means)
        found = self.fit_beside(name, regressors, start or base)
        self.fits[name, season] = found
        return found

    def fit_beside(self, name: str, regressors: Regressors, start: Maximum | None) -> Maximum:
        """Fit a form of drift with given regressors, from another fit or first estimates."""
        season = regressors.season
        what = "no season"
        if season is not None:
            what = f"{season.kind} {season.length * self.units.time:.4g}"
        self.on_step(f"{name}, {what}")
        residuals = regressors.removed_from(self.cells)
        theta = None if start is None or start.form.name != name else start.theta
        form: Form
        if name == INDEPENDENT:
            form = IndependentForm(residuals, theta)
        elif name == VECTOR:
            form = VectorForm(residuals, self.fit(INDEPENDENT, season).theta)
        else:
            if start is not None and isinstance(start.form, CommonForm):
                covariance = start.form.dynamics(start.theta).covariance.numpy()
            else:
                covariance = first_covariance(residuals)
            kernels = self.forms[name](self.units.time)
            form = CommonForm(name, kernels, residuals, covariance, self.weight, self.noise, theta)
        num_iterations = VECTOR_ITERATIONS if name == VECTOR else ROUGH_ITERATIONS
        return self.maximize(form, regressors, form.start, ROUGH, num_iterations)

    @property
    def shift(self) -> float:
        """What a log likelihood in the unit of the cells is more than in the user's."""
        return self.cells.num_values * math.log(self.units.value)

    def rate_interval(self, found: Maximum, level: float) -> tuple[float, float] | None:
        """Return the profile likelihood interval of ε in the user's unit of time, or None.

        It is of exponential decay that all arms share. Everything else is maximized again at each
        rate, on both sides until the likelihood has fallen by half the quantile of chi squared; an
        end that is not reached within the bounds is 0 or 1.

        Args:
            found: The fit, at its maximum.
            level: Confidence.
        """
        form = found.form
        if not isinstance(form, CommonForm) or form.name != EXPONENTIAL:
            return None
        (low, high), center = form.bounds()[0].tolist(), float(found.theta[0])
        depth = math.sqrt(float(chdtri(1, 1 - level)))
        points = {center: found}

        def search_from(near: Maximum, start: Array) -> Maximum:
            return self.maximize(form, near.regressors, start, ROUGH_PROFILE, num_held=1)

        def excess(log_rate: float) -> float:
            """Return the square root of twice the fall, nearly linear, less what is looked for."""
            if log_rate not in points:
                near = points[min(points, key=lambda known: abs(known - log_rate))]
                best = search_from(near, form.at_rate(near.theta, log_rate))
                noisy, fall = form.with_noise(best.theta), found.objective - best.objective
                if fall > 0.5 * depth**2 and (noisy != best.theta).any():
                    # What does not fit this rate may be noise.
                    best = max(best, search_from(best, noisy), key=attrgetter("objective"))
                points[log_rate] = best
            fall = found.objective - points[log_rate].objective
            return math.sqrt(max(0.0, 2 * fall)) - depth

        ends = []
        for bound, at_bound, step in ((low, 0.0, -FIRST_STEP), (high, 1.0, FIRST_STEP)):
            inner, outer = center, center
            while outer != bound and excess(outer) < 0:
                inner, outer, step = outer, float(np.clip(outer + step, low, high)), 2 * step
            if excess(outer) < 0:
                ends.append(at_bound)
                continue
            end = float(brentq(excess, inner, outer, xtol=RATE_TOLERANCE))
            ends.append(-math.expm1(-math.exp(end) / self.units.time))
        return ends[0], ends[1]

    def fold(self, name: str, season: Season | None, share: float) -> Game:
        """Return the model of a form by the first part of the log, and the rows to be played.

        Args:
            name: Name of the form.
            season: The season.
            share: Share of the log before those rows.
        """
        T, segments = len(self.cells.values), np.flatnonzero(self.cells.starts)
        cut, end = int(share * T), min(T, int((share + 1 - SCORED) * T) + 1)
        if len(segments) > 1:
            # Between segments.
            cut = int(segments[np.abs(segments - cut).argmin()]) or int(segments[1])
        if cut not in self.parts:
            before = self.cells.part(slice(0, cut))
            self.parts[cut] = PanelSearch(before, self.forms, self.units, self.on_step, self)
            if self.season is not None:
                self.parts[cut].set_prior(self.season)
        part, panel = self.parts[cut], self.units.undo(self.cells)
        model = part.fit(name, season).model(self.units)
        belief, played = model.filter_panel(self.units.undo(part.cells)), range(cut, end)
        return Game(model, belief, panel, played)

    def scores(self, name: str, season: Season | None) -> Array:
        """Return how well the model of a form by a part of the log predicts the rows after it."""
        if (name, season) not in self._scores:
            self._scores[name, season] = one_arm_scores(self.fold(name, season, SCORED))
        return self._scores[name, season]

    def maximize(
        self,
        form: Form,
        regressors: Regressors,
        theta: Array,
        enough: float,
        num_iterations: int = MAX_ITERATIONS,
        num_held: int = 0,
    ) -> Maximum:
        """Maximize the penalized likelihood over a form's parameters, and means and season.

        The likelihood is the restricted one (Patterson, Thompson, 1971), in which the means are
        integrated out: at their maximum what drifts slowly is taken for a mean. All are searched
        together by L-BFGS, the coefficients in units of their posterior deviations.

        Args:
            form: The form of drift.
            regressors: The functions of means and season, with coefficients at which it starts.
            theta: Parameters at which it starts.
            enough: Gain in log density of an iteration below which the search ends.
            num_iterations: Largest number of iterations.
            num_held: Number of first parameters that stay as they are.
        """
        bounds = form.bounds()
        theta = theta.clip(*bounds.T)
        bounds[:num_held] = theta[:num_held, None]
        values, columns = torch.as_tensor(self.cells.values), torch.as_tensor(regressors.columns)
        start = torch.as_tensor(regressors.coefficients)
        sizes, num_values = [len(theta), start.numel()], self.cells.num_values
        # About the posterior precisions along the directions, of which steps are in units.
        directions, precisions = map(torch.as_tensor, (regressors.modes, regressors.precisions))
        if regressors.season is None or not isinstance(form, CommonForm):
            directions, information = form.white_products(theta, regressors.columns)
            precisions = (directions.mT @ torch.as_tensor(regressors.modes)).square() @ precisions
        else:
            information = torch.as_tensor(information_on(regressors, form, theta))
        precision = information + torch.diag_embed(precisions)
        root = torch.linalg.cholesky(precision) / math.sqrt(len(values))

        def moved_by(steps: Tensor) -> Tensor:
            solved = torch.linalg.solve_triangular(
                root.mT, steps.reshape(*root.shape[:2], 1), upper=True
            )
            return start + (directions @ solved[..., 0]).mT

        def descent(point: Array) -> tuple[float, Array]:
            at = torch.tensor(point, requires_grad=True)
            own, steps = at.split(sizes)
            moved = moved_by(steps)
            try:
                value = form.log_likelihood(own, values - columns @ moved) + form.log_prior(own)
            except torch.linalg.LinAlgError:
                return math.inf, np.zeros_like(point)
            value = value + regressors.log_prior(moved)
            value.backward()
            assert at.grad is not None
            return -value.item(), -at.grad.numpy()

        point, best, converged = np.append(theta, np.zeros(sizes[1])), -math.inf, False
        free = np.full((sizes[1], 2), [-math.inf, math.inf])
        enough_of_all = {"ftol": enough / num_values, "gtol": 1e-3}
        while num_iterations > 0 and not converged:
            found = minimize(
                descent,
                point,
                jac=True,
                method="L-BFGS-B",
                bounds=np.concatenate([bounds, free]).tolist(),
                options={"maxiter": num_iterations, "maxcor": MEMORY, **enough_of_all},
            )
            num_iterations -= max(1, found.nit)
            point, before, best = found.x, best, -float(found.fun)
            converged = best - before < AGAIN * enough
        theta, steps = np.split(point, [len(theta)])
        coefficients = moved_by(torch.as_tensor(steps)).numpy()
        at_maximum = replace(regressors, coefficients=coefficients)
        return Maximum(form, theta, at_maximum, best, converged, num_values)
