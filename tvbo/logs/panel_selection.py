"""The forms of drift and seasons of a panel: first estimates, maxima, and which is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from scipy.optimize import brentq, minimize
from scipy.special import chdtri
from torch import Tensor

from tvbo.logs.forms import EXPONENTIAL, Forms, PanelCandidate
from tvbo.logs.paired import mean_and_error
from tvbo.logs.panel_cells import (
    Cells,
    Regressors,
    Units,
    columns_of,
    log_volume,
    posterior_precision,
)
from tvbo.logs.panel_dynamics import PanelModel
from tvbo.logs.panel_forms import (
    CommonForm,
    Form,
    IndependentForm,
    VectorForm,
    ledoit_wolf,
    prior_weight,
)
from tvbo.logs.panel_play import Game, one_arm_scores
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

INDEPENDENT, VECTOR = IndependentForm.name, VectorForm.name

ROUGH, FINE = 2e-2, 3e-4
"""Gains in log density of an iteration below which a search ends: of the fits that are compared,
and of the one that is taken."""

SCORED = 0.75
"""Share of the log after which forms are scored; what is played after another share is as long."""

DEVIATIONS, WORSE = 3.0, 2.0
"""Standard errors by which another form has to predict better, since two are passed by chance in
one of some panels, where errors are correlated for long; and by which a season must not predict
worse: that values far out repeat is evidence by chance."""

LEAST_CORRELATION = 0.2
"""Mean correlation of successive residuals from which the covariance is estimated by them; with
less, the error of that estimate exceeds what the noise adds."""

SMALLEST_START = 1e-3
"""Smallest eigenvalue of the first estimate of that covariance, as a share of the largest."""

SPREADS = (4.0, 0.25)
"""Factors between the rates of a sum of kernels from which its search begins again."""

ROUGH_ITERATIONS, VECTOR_ITERATIONS = 120, 20
"""Largest number of iterations of a search whose result is compared or continued, and of a vector
autoregression, which many more take no nearer to what follows."""

FIRST_STEP, RATE_TOLERANCE, ROUGH_PROFILE = 0.3, 0.02, 1e-2
"""First step outwards in the logarithm of the rate, to an end of its interval, the tolerance there,
and the gain at which the search at a rate ends."""

AMPLITUDES = (math.log(1e-4), math.log(1e3))
"""Range of the logarithm of a season's variance, where the covariance over arms has the power of
the season's."""

SMALLEST_VARIANCE = 1e-6
"""Least variance of a mode, as a share of the largest, of which that of a season is a power."""

SMALLEST_WEIGHT = 1e-9
"""Smallest share of a function in the prior variance of a season."""

DIFFERENCE = 1e-5
"""Step of the differences by the shape of a season."""

MAX_VECTOR_ARMS = 100
"""Largest number of arms for which a vector autoregression is compared: its parameters, and the
time of its search, grow with the square."""

MAX_DENSE_STATES = 120
"""Largest number of states of arms together for which forms with more than one state are compared
where cells are missing."""


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
            regressors = season_regressors(self.cells, season, self.fit(EXPONENTIAL, None))
            without, noise = covariance_weight(regressors.removed_from(self.cells))
            weight = min(weight, without)
        self.weight, self.noise = weight, noise
        self.season, self.fits, self.parts = season, {}, {}

    def polish(self, found: Maximum) -> Maximum:
        """Continue the search of a fit to its maximum."""
        form, tried = found.form, [found]
        if isinstance(form, CommonForm) and len(form.kernels) > 1:
            # Sums of kernels have several maxima.
            for factor in SPREADS:
                theta = form.spread(found.theta, factor)
                tried.append(self.maximize(form, found.regressors, theta, 0.1, ROUGH_ITERATIONS))
        best = max(tried, key=lambda each: each.objective)
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
            regressors = season_regressors(self.cells, season, base)
        else:
            means = filled_in(self.cells).mean(axis=0, keepdims=True)
            base, n = None, means.size
            columns = columns_of(None, self.cells.times)
            regressors = Regressors(None, columns, np.eye(n), np.zeros((n, 1)), means)
        found = self._maximize(name, regressors, start or base)
        self.fits[name, season] = found
        return found

    def _maximize(self, name: str, regressors: Regressors, start: Maximum | None) -> Maximum:
        """Fit a form of drift with given regressors, from another fit or first estimates."""
        season = regressors.season
        what = (
            "no season"
            if season is None
            else f"{season.kind} {season.length * self.units.time:.4g}"
        )
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

    def affordable(self, names: list[str]) -> list[str]:
        """Return the forms that this panel allows, and say which are left out."""
        cells, is_regular = self.cells, self.cells.is_regular
        n = cells.values.shape[1]
        if len(names) == 1:
            if names == [VECTOR] and not is_regular:
                raise InputDataError(
                    "Expected times at multiples of one gap for a vector autoregression. Got "
                    "others."
                )
            return names
        if not is_regular or n > MAX_VECTOR_ARMS:
            names = [name for name in names if name != VECTOR]
            why = f"More than {MAX_VECTOR_ARMS} arms" if is_regular else "Times of unequal gaps"
            self.messages.append(f"{why}: no vector autoregression was compared.")
        if not cells.is_full and 2 * n > MAX_DENSE_STATES:
            names = [name for name in names if name in (EXPONENTIAL, INDEPENDENT, VECTOR)]
            self.messages.append(
                "Since cells are missing, and arms are many, fewer forms were compared."
            )
        return names

    def choose_season(
        self, seasons: Sequence[Season], names: Sequence[str], are_found: bool
    ) -> Season | None:
        r"""Return the season of the largest evidence, or None, and set the prior without it.

        It needs evidence beside exponential decay, which may need a season for what is smooth
        drift, and so beside the form that has most with it too, with a prior given that form. A
        period that was found in the log is a parameter about which a log tells more than about
        others: it counts :math:`\frac{1}{2} \log N T^2` (Djurić, 1996), and the form must not
        predict worse with it, by :data:`WORSE` standard errors.

        Args:
            seasons: The seasons that are compared with one another, and with none.
            names: The forms of drift.
            are_found: Whether their periods were found in the log.
        """
        season = max([None, *seasons], key=lambda each: self.fit(EXPONENTIAL, each).evidence)
        if season is None:
            return None
        common = [name for name in names if name in self.forms] or names
        best = max(common, key=lambda name: self.fit(name, season).evidence)
        without, beside = self.fit(best, None), self.fit(best, season)
        if best != EXPONENTIAL and best in self.forms:
            regressors = season_regressors(self.cells, season, without)
            beside = self._maximize(best, regressors, beside)
        found = 0.5 * math.log(self.cells.num_values) + math.log(self.cells.span)
        gain = beside.evidence - without.evidence
        if gain <= (found if are_found else 0.0):
            return None
        self.set_prior(season)
        if are_found:
            scores = [one_arm_scores(self.fold(best, each, SCORED)) for each in (season, None)]
            gain, error = mean_and_error(scores[0] - scores[1])
            if gain < -WORSE * error:
                self.set_prior(None)
                return None
        return season

    def choose(
        self, names: Sequence[str], season: Season | None
    ) -> tuple[str, list[PanelCandidate], str]:
        """Return the name of the form that is taken, the rows of all forms, and the reason.

        Of the forms that arms share, that of the largest evidence is taken; then independent arms,
        and then a vector autoregression, if they predict better than what was taken before, from
        one arm at a time, by :data:`DEVIATIONS` standard errors. Only what is taken, of these two,
        is fitted to the whole panel.
        """
        common = [name for name in names if name in self.forms] or names
        fits = {name: self.fit(name, season) for name in common}
        chosen, *others = sorted(fits, key=lambda name: -fits[name].evidence)
        reason = f"{chosen}, {'no ' if season is None else ''}season: "
        reason += "the only candidate" if len(names) == 1 else ""
        if others:
            lead = fits[chosen].evidence - fits[others[0]].evidence
            reason += f"it has the largest evidence, {lead:.1f} nats more than {others[0]}"
        separate = [name for name in names if name not in common]
        scores: dict[str, Array] = {}
        if separate:
            folds = {name: self.fold(name, season, SCORED) for name in (chosen, *separate)}
            scores = {name: one_arm_scores(fold) for name, fold in folds.items()}
            reason += "; from one arm at a time"
            for name in separate:
                gain, error = mean_and_error(scores[name] - scores[chosen])
                reason += (
                    f", {name} predicts all arms {'better' if gain >= 0 else 'worse'} than "
                    f"{chosen} by {abs(gain):.3g} ± {error:.2g} nats a time"
                )
                chosen = name if gain > DEVIATIONS * error else chosen
            reason += f", so that {chosen} is taken"
        fits[chosen], count = self.fit(chosen, season), self.cells.values.shape[1]
        rows = [
            PanelCandidate(
                name,
                season is not None,
                fits[name].num_parameters if name in fits else None,
                fits[name].objective - self.shift if name in fits else None,
                fits[name].evidence - self.shift if name in fits else None,
                float(scores[name].mean()) / count if name in scores else None,
            )
            for name in names
        ]
        return chosen, rows, f"{reason}."

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

        def excess(log_rate: float) -> float:
            """Return the square root of twice the fall, nearly linear, less what is looked for."""
            if log_rate not in points:
                near = points[min(points, key=lambda known: abs(known - log_rate))]
                start = form.at_rate(near.theta, log_rate)
                points[log_rate] = self.maximize(
                    form, near.regressors, start, ROUGH_PROFILE, num_held=1
                )
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


def season_regressors(cells: Cells, season: Season, base: Maximum) -> Regressors:
    r"""Return the functions of means and season, with prior variances by empirical Bayes.

    A function of the season has in mode ``i`` the prior variance :math:`g w_j \lambda_i^b`, with
    :math:`\lambda_i` the mode's variance and :math:`w` the shape of the season. Amplitude, power
    and shape maximize the marginal likelihood of the modes, given drift and noise.

    Args:
        cells: The panel.
        season: The season, in units of the usual gap.
        base: A maximum without a season, of a form that arms share.
    """
    form, theta = base.form, base.theta
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
