"""Comparison of models of a panel by evidence and by one-step-ahead prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.kernels.temporal_base import check_markov
from tvbo.logs.panel_data import panel_data
from tvbo.logs.panel_mean import mode_forecast
from tvbo.logs.panel_search import (
    FittedPanel,
    fit_first_model,
    fit_model,
    fit_season,
    improved_fit,
)
from tvbo.logs.panel_terms import Component, DriftTerms, in_unit_of_time
from tvbo.logs.season import Season

Array = NDArray[np.float64]

LAST_PART = 0.25
"""Share of the log, at its end, on which one-step-ahead predictions are scored."""


@dataclass(frozen=True)
class Candidate:
    """A form of drift to compare.

    Args:
        name: Its name in the table.
        kernels: Makes its temporal kernels, in a unit of time of one gap.
    """

    name: str
    kernels: Callable[[], list[TemporalKernel]]


def exponential(rate: float = 0.3) -> TemporalDecayKernel:
    """Return exponential decay with a start for ρ, and ε anywhere in [0, 1]."""
    kernel: TemporalDecayKernel = TemporalDecayKernel(
        forgetting_rate_constraint=Interval(0.0, 1.0, transform=None, initial_value=0.5)
    ).double()
    kernel.forgetting_rate = -math.expm1(-rate)
    return kernel


def _matern() -> list[TemporalKernel]:
    kernel = TemporalMaternKernel().double()
    kernel.lengthscale = 5.0
    return [kernel]


TWO_SCALES = Candidate("two-scales", lambda: [exponential(1.0), exponential(0.03)])
CANDIDATES = (
    Candidate("exponential", lambda: [exponential()]),
    Candidate("matern32", _matern),
    TWO_SCALES,
)
"""The forms of drift that ``temporal_kernel="auto"`` compares."""


def candidates_of(
    temporal_kernel: TemporalKernel | Sequence[TemporalKernel] | str | None,
) -> list[Candidate]:
    """Return the forms of drift to compare.

    Raises:
        TypeError: if a kernel is no temporal kernel.
        ValueError: if it is none of these, or a kernel is not Markov.
    """
    if temporal_kernel is None:
        return [CANDIDATES[0]]
    if isinstance(temporal_kernel, str):
        named = {candidate.name: candidate for candidate in CANDIDATES}
        if temporal_kernel == "auto":
            return list(CANDIDATES)
        if temporal_kernel in named:
            return [named[temporal_kernel]]
        raise ValueError(
            "Expected a temporal kernel, a list of them, None, 'auto', or one of "
            f"{', '.join(named)}. Got {temporal_kernel!r}."
        )
    kernels = [temporal_kernel] if isinstance(temporal_kernel, Kernel) else temporal_kernel
    given = [check_markov(kernel) for kernel in kernels]
    if not given:
        raise ValueError("Expected a temporal kernel, or a list of them. Got none.")
    return [Candidate(" + ".join(type(kernel).__name__ for kernel in given), lambda: given)]


class Key(NamedTuple):
    """A row of the table: the form of drift, and whether there is a season."""

    drift: str
    has_season: bool

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.drift}, {'' if self.has_season else 'no '}season"


@dataclass(frozen=True)
class PanelCandidate:
    """A row of the table of evidence.

    Args:
        temporal_kernel: Name of the form of drift.
        has_season: Whether there is a season.
        num_parameters: Number ``k`` of parameters that were maximized.
        log_likelihood: Log marginal likelihood of the values in the user's unit.
        evidence: The same less ``k / 2 log N``, with ``N`` values.
        predictive_score: Mean log density of a value of the last part of the log, one step ahead,
            by the model fitted to the first; None if there was only one candidate.
        penalized_prediction: The sum of these log densities less ``k / 2 log M``, with ``M`` values
            in the last part.
        forecast_error: Root mean squared error of the forecast of the last part from the end of the
            first, without its observations; None if there was only one candidate.
    """

    temporal_kernel: str
    has_season: bool
    num_parameters: int
    log_likelihood: float
    evidence: float
    predictive_score: float | None
    penalized_prediction: float | None
    forecast_error: float | None


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
        (candidate,) = (each for each in self.candidates if each.name == key.drift)
        return improved_fit(self.data, self._fit(candidate, self.fit_base(season)))

    def _fit(self, candidate: Candidate, base: FittedPanel) -> FittedPanel:
        """Fit a form of drift, with covariance and season of a base."""
        kernels = candidate.kernels()
        if candidate not in CANDIDATES:
            kernels = [in_unit_of_time(kernel, self.gap) for kernel in kernels]
        components = [Component(kernel) for kernel in kernels]
        eigenvalues = base.covariance.eigenvalues
        terms = DriftTerms(components, eigenvalues, self.data.lags, self.data.span)
        starts = [base.theta if candidate is CANDIDATES[0] else terms.start()]
        if candidate is TWO_SCALES:
            # From the base, with little of a component ten times as slow.
            rate, amplitude, power, noise = base.theta
            other = [rate - math.log(10.0), amplitude - 3.0]
            starts.append(np.array([rate, amplitude, *other, power, noise]))
        return fit_model(self.data, components, base, starts)

    def fit_all(self, bases: Sequence[FittedPanel]) -> None:
        """Fit all forms of drift, given exponential decay without a season, with one, or both."""
        for candidate in self.candidates:
            for base in bases:
                key = Key(candidate.name, base.season is not None)
                self.on_step(str(key))
                self.fits[key] = improved_fit(self.data, self._fit(candidate, base))

    def evidence(self, fit: FittedPanel) -> float:
        """Return log marginal likelihood less the penalty of BIC."""
        return fit.log_likelihood - 0.5 * fit.num_parameters * math.log(self.data.num_values)

    def scores(self) -> dict[Key, tuple[float, float, float]]:
        """Return the last three columns of the table, by fits to the first part of the log.

        The log density is a difference of log marginal likelihoods, which is the sum of those of
        the values at each time given all before.
        """
        cut = list(self._first_part())
        part = Comparison(cut, self.candidates, self.gap, self.on_step)
        count = self.data.num_values - part.data.num_values
        is_segmented = len(self.blocks) > 1
        rest = self.blocks[len(cut) :]
        if not is_segmented:
            times, values = self.blocks[0]
            rest = [(times[len(cut[0][0]) :], values[len(cut[0][0]) :])]
        self.on_step("first part: covariance and drift")
        bases = []
        for season in {key.has_season: fit.season for key, fit in self.fits.items()}.values():
            bases.append(part.flat if season is None else part.fit_season(season))
        part.fit_all(bases)
        scores = {}
        for key, fit in part.fits.items():
            gained = fit.log_likelihood_of(self.data) - fit.log_likelihood
            forecast = mode_forecast(fit, part.data, 1.0, 1.0, is_segmented)
            errors = [values - forecast.means(times) for times, values in rest]
            squares = sum(float((error**2).sum()) for error in errors)
            penalty = 0.5 * fit.num_parameters * math.log(count)
            scores[key] = gained / count, gained - penalty, math.sqrt(squares / count)
        return scores

    def _first_part(self) -> Iterator[tuple[Array, Array]]:
        if len(self.blocks) > 1:
            yield from self.blocks[: -max(1, round(LAST_PART * len(self.blocks)))]
        else:
            times, values = self.blocks[0]
            kept = len(times) - max(1, round(LAST_PART * len(times)))
            yield times[:kept], values[:kept]


def choose(rows: Sequence[PanelCandidate]) -> tuple[PanelCandidate, str]:
    """Return the row of the largest evidence, and the reason in a sentence.

    Where another row predicts the last part of the log better, the reason says so.
    """
    has_seasons = any(row.has_season for row in rows)

    def name(row: PanelCandidate) -> str:
        return str(Key(row.temporal_kernel, row.has_season)) if has_seasons else row.temporal_kernel

    best = max(rows, key=lambda row: row.evidence)
    if len(rows) == 1:
        return best, f"{name(best)}: the only candidate."
    reason = f"{name(best)}: it has the largest evidence"
    for others in (
        [row for row in rows if row.temporal_kernel != best.temporal_kernel],
        [row for row in rows if row.has_season != best.has_season],
    ):
        if others:
            other = max(others, key=lambda row: row.evidence)
            reason += f", {best.evidence - other.evidence:.1f} nats more than {name(other)}"
    predicted = max(rows, key=lambda row: _number(row.penalized_prediction))
    if predicted is best:
        return best, f"{reason}, and predicts the last part of the log best, one step ahead."
    lead = _number(predicted.penalized_prediction) - _number(best.penalized_prediction)
    return best, (
        f"{reason}, although {name(predicted)} predicts the last part of the log better, one step "
        f"ahead, by {lead:.1f} nats after the penalty for parameters."
    )


def _number(value: float | None) -> float:
    return -math.inf if value is None else value
