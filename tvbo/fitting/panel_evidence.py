"""Comparison of models of a panel by evidence and by one-step-ahead prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gpytorch.constraints import Interval
from numpy.typing import NDArray

from tvbo.fitting.panel_coefficients import SegmentGroup
from tvbo.fitting.panel_mean import mode_forecast
from tvbo.fitting.panel_search import FittedPanel, PanelData, fit_model
from tvbo.fitting.panel_terms import Component, Season, in_unit_of_time
from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel

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
    kernel = TemporalDecayKernel(
        forgetting_rate_constraint=Interval(0.0, 1.0, transform=None, initial_value=0.5)
    ).double()
    kernel.forgetting_rate = -math.expm1(-rate)
    return kernel


def _matern() -> list[TemporalKernel]:
    kernel = TemporalMaternKernel().double()
    kernel.lengthscale = 5.0
    return [kernel]


CANDIDATES = (
    Candidate("exponential", lambda: [exponential()]),
    Candidate("matern32", _matern),
    Candidate("two-scales", lambda: [exponential(1.0), exponential(0.03)]),
)
"""The forms of drift that ``temporal_kernel="auto"`` compares."""


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
        forecast_error: Root mean squared error of the forecast of the last part from the end of the
            first, without its observations; None if there was only one candidate.
    """

    temporal_kernel: str
    has_season: bool
    num_parameters: int
    log_likelihood: float
    evidence: float
    predictive_score: float | None
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

    def fit_first(self, season: Season | None) -> FittedPanel:
        """Fit the first form of drift; its covariance is that of all with or without a season."""
        return _fit(self.data, season, self.candidates[0], self.gap)

    def fit_all(self, bases: Sequence[FittedPanel]) -> None:
        """Fit all forms of drift, given the first one without a season, with one, or both."""
        for candidate in self.candidates:
            for base in bases:
                key = Key(candidate.name, base.season is not None)
                if candidate is self.candidates[0]:
                    self.fits[key] = base
                else:
                    self.on_step(str(key))
                    self.fits[key] = _fit(self.data, base.season, candidate, self.gap, base)

    def evidence(self, fit: FittedPanel) -> float:
        """Return log marginal likelihood less the penalty of BIC."""
        return fit.log_likelihood - 0.5 * fit.num_parameters * math.log(self.data.num_values)

    def scores(self) -> dict[Key, tuple[float, float]]:
        """Return mean log density and forecast error of the last part, by fits to the first part.

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
        bases = []
        for season in {key.has_season: fit.season for key, fit in self.fits.items()}.values():
            self.on_step(f"first part: {Key(self.candidates[0].name, season is not None)}")
            bases.append(part.fit_first(season))
        part.fit_all(bases)
        scores = {}
        for key, fit in part.fits.items():
            gained = fit.log_likelihood_of(self.data) - fit.log_likelihood
            forecast = mode_forecast(fit, part.data, 1.0, 1.0, is_segmented)
            errors = [values - forecast.means(times) for times, values in rest]
            squares = sum(float((error**2).sum()) for error in errors)
            scores[key] = gained / count, math.sqrt(squares / count)
        return scores

    def _first_part(self) -> Iterator[tuple[Array, Array]]:
        if len(self.blocks) > 1:
            yield from self.blocks[: -max(1, round(LAST_PART * len(self.blocks)))]
        else:
            times, values = self.blocks[0]
            kept = len(times) - max(1, round(LAST_PART * len(times)))
            yield times[:kept], values[:kept]


def choose(rows: Sequence[PanelCandidate]) -> tuple[PanelCandidate, str]:
    """Return the chosen row of the table, and the reason in a sentence.

    It is that of the largest evidence. A season must also forecast the last part of the log with a
    smaller error than the same drift without one.
    """
    best = max(rows, key=lambda row: row.evidence)
    if len(rows) == 1:
        return best, f"{_name(best)}: the only candidate."
    plain = [row for row in rows if not row.has_season]
    dropped = ""
    if best.has_season and plain:
        same = next(row for row in plain if row.temporal_kernel == best.temporal_kernel)
        errors = [row.forecast_error or 0.0 for row in (best, same)]
        if errors[0] >= errors[1]:
            dropped = (
                " A season has the larger evidence, but forecasts the last part of the log from "
                f"the first with an error of {errors[0]:.4g} (without it {errors[1]:.4g}), and is "
                "dropped."
            )
            rows, best = plain, max(plain, key=lambda row: row.evidence)
    second = max(
        (row for row in rows if row is not best), key=lambda row: row.evidence, default=None
    )
    reason = f"{_name(best)}:"
    if second is not None:
        reason += (
            f" its evidence is {best.evidence - second.evidence:.1f} nats above that of "
            f"{_name(second)}."
        )
    else:
        reason += " the only candidate left."
    ahead = max(rows, key=_score)
    if ahead is best:
        reason += " It also predicts the last part of the log best, one step ahead."
    else:
        reason += (
            f" {_name(ahead)} predicts the last part of the log better, by "
            f"{_score(ahead) - _score(best):.2g} nats per value."
        )
    return best, reason + dropped


def _score(row: PanelCandidate) -> float:
    return -math.inf if row.predictive_score is None else row.predictive_score


def _name(row: PanelCandidate) -> str:
    return str(Key(row.temporal_kernel, row.has_season))


def panel_data(blocks: Sequence[tuple[Array, Array]]) -> PanelData:
    """Return a panel from times and values of its segments, those with the same times together."""
    together: dict[bytes, list[tuple[Array, Array]]] = {}
    for times, values in blocks:
        together.setdefault(times.tobytes(), []).append((times, values))
    # Gaps that differ by rounding are one.
    gaps = np.concatenate([np.diff(times) for times, _ in blocks]).round(9)
    usual = np.median(gaps)
    lags = np.unique(gaps)
    lags = np.concatenate([[lags[np.abs(lags - usual).argmin()]], lags])
    order = {lag: i for i, lag in enumerate(lags.tolist())}
    groups = [
        SegmentGroup(
            same[0][0],
            [order[lag] for lag in np.diff(same[0][0]).round(9).tolist()],
            np.stack([values for _, values in same], axis=-1),
        )
        for same in together.values()
    ]
    return PanelData(groups, lags)


def _fit(
    data: PanelData,
    season: Season | None,
    candidate: Candidate,
    gap: float,
    base: FittedPanel | None = None,
) -> FittedPanel:
    """Fit a form of drift, with the covariance of a base if there is one."""
    kernels = candidate.kernels()
    if candidate not in CANDIDATES:
        kernels = [in_unit_of_time(kernel, gap) for kernel in kernels]
    components = [Component(kernel) for kernel in kernels]
    return fit_model(data, season, components, base and base.covariance, base)
