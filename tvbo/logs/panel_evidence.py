"""Comparison of models of a panel by evidence and by one-step-ahead prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tvbo.logs.forms import CANDIDATES, LAST_PART, TWO_SCALES, Candidate, label_of
from tvbo.logs.panel_data import panel_data
from tvbo.logs.panel_mean import mode_forecast
from tvbo.logs.panel_search import FittedPanel, fit_first_model, fit_model, fit_season, improved_fit
from tvbo.logs.panel_terms import Component, in_unit_of_time
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array

Key = tuple[str, bool]
"""A row of the table: the form of drift, and whether there is a season."""


class Comparison:
    """Fits of several forms of drift to a panel, without and with a season.

    Args:
        blocks: Times and values of each segment, ``T`` and ``T x n``.
        candidates: The forms of drift.
        gap: Unit of the times, in the user's.
        on_step: Called with the name of each step.
    """

    def __init__(
        self,
        blocks: list[tuple[Array, Array]],
        candidates: Sequence[Candidate],
        gap: float,
        on_step: Callable[[str], None],
    ):
        self.blocks, self.candidates, self.gap, self.on_step = blocks, candidates, gap, on_step
        self.data = panel_data(blocks)
        self.fits: dict[Key, FittedPanel] = {}

    @cached_property
    def flat(self) -> FittedPanel:
        """The fit of exponential decay without a season."""
        return self.fit_base(None)

    def fit_base(self, season: Season | None) -> FittedPanel:
        """Fit exponential decay with a season or without, from which the other forms start."""
        components = [Component(kernel) for kernel in CANDIDATES[0].kernels()]
        return fit_first_model(self.data, season, components)

    def fit_season(self, season: Season) -> FittedPanel:
        """Fit exponential decay with a season, and the covariance of the fit without one."""
        return fit_season(self.data, season, self.flat)

    def fit_final(self, key: Key) -> FittedPanel:
        """Return the fit of a row of the table; with a season, with the covariance about it."""
        season = self.fits[key].season
        if season is None or len(self.fits) == 1:
            return self.fits[key]
        self.on_step("covariance about the season")
        (candidate,) = (each for each in self.candidates if each.name == key[0])
        return improved_fit(self.data, self._fit(candidate, self.fit_base(season)))

    def _fit(self, candidate: Candidate, base: FittedPanel) -> FittedPanel:
        """Fit a form of drift, with covariance and season of a base."""
        kernels = candidate.kernels()
        if candidate not in CANDIDATES:
            kernels = [in_unit_of_time(kernel, self.gap) for kernel in kernels]
        start = replace(base, components=[Component(kernel) for kernel in kernels])
        if candidate is not CANDIDATES[0]:
            start = replace(start, theta=start.terms(self.data).start())
        starts = [start]
        if candidate is TWO_SCALES:
            # From the base, with little of a component ten times as slow.
            rate, amplitude, power, noise = base.theta
            theta = [rate, amplitude, rate - math.log(10.0), amplitude - 3.0, power, noise]
            starts.append(replace(start, theta=np.array(theta)))
        return fit_model(self.data, starts)

    def fit_all(self, bases: Sequence[FittedPanel]) -> None:
        """Fit all forms of drift, given exponential decay without a season, with one, or both."""
        for candidate in self.candidates:
            for base in bases:
                key = candidate.name, base.season is not None
                self.on_step(label_of(*key))
                self.fits[key] = improved_fit(self.data, self._fit(candidate, base))

    def evidence(self, fit: FittedPanel) -> float:
        """Return log marginal likelihood less the penalty of BIC."""
        return fit.log_likelihood - 0.5 * fit.num_parameters * math.log(self.data.num_values)

    def scores(self, unit: float) -> dict[Key, tuple[float, float, float]]:
        """Return the last three columns of the table, by fits to the first part of the log.

        The log density is a difference of log marginal likelihoods, which is the sum of those of
        the values at each time given all before.

        Args:
            unit: Unit of the values, in that of the user, for the density and the error.
        """
        is_segmented = len(self.blocks) > 1
        times, values = self.blocks[0]
        length = len(self.blocks) if is_segmented else len(times)
        cut = length - max(1, round(LAST_PART * length))
        first, rest = self.blocks[:cut], self.blocks[cut:]
        if not is_segmented:
            first, rest = [(times[:cut], values[:cut])], [(times[cut:], values[cut:])]
        part = Comparison(first, self.candidates, self.gap, self.on_step)
        count = self.data.num_values - part.data.num_values
        self.on_step("first part: covariance and drift")
        bases = []
        for season in {
            has_season: fit.season for (_, has_season), fit in self.fits.items()
        }.values():
            bases.append(part.flat if season is None else part.fit_season(season))
        part.fit_all(bases)
        scores = {}
        for key, fit in part.fits.items():
            gained = fit.log_likelihood_of(self.data) - fit.log_likelihood
            forecast = mode_forecast(fit, part.data, 1.0, 1.0, is_segmented)
            errors = [values - forecast.means(times) for times, values in rest]
            squares = sum(float((error**2).sum()) for error in errors)
            penalty = 0.5 * fit.num_parameters * math.log(count)
            error = unit * math.sqrt(squares / count)
            scores[key] = gained / count - math.log(unit), gained - penalty, error
        return scores
