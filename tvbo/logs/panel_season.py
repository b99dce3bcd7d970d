"""Which seasons a panel may have: given, known from its times, or found in the log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from scipy.optimize import minimize_scalar

from tvbo.logs.forms import EXPONENTIAL
from tvbo.logs.panel_cells import Cells
from tvbo.logs.panel_forms import CommonForm
from tvbo.logs.panel_search import Maximum, PanelSearch
from tvbo.logs.season import MAX_HARMONICS, PeriodicSeason, Season, SegmentProfile, WorkweekSeason
from tvbo.spaces.times import duration, parse_timedelta

if TYPE_CHECKING:
    import pandas as pd

OVERSAMPLING = 8
"""Frequencies of the periodogram for each one that the length of the log resolves."""

HARMONIC_WEIGHTS = (1.0, 0.9, 0.8)
"""Weights of the first harmonics in the search for a period, so that of a period and its multiples
the shortest is found."""

PEAKS = 3
"""Number of periods that are tried."""

WORKWEEK_HARMONICS = 12
"""Largest number of harmonics of each of the two profiles of working days and weekends."""

PERIODS, FOUND_PERIODS = 2.0, 4.0
"""Numbers of periods that a log must span, of a period that is known and of one found in it: what
comes twice may be slow drift."""


def seasons_of(
    season: float | Season | Literal["auto"],
    search: PanelSearch,
    time_unit: str,
    origin: pd.Timestamp | None,
    is_segmented: bool,
) -> list[Season]:
    """Return the seasons to compare, in units of time of one gap; none if there can be none.

    Args:
        season: A period or a season in the user's unit of time, or ``"auto"``.
        search: The panel.
        time_unit: Name of the user's unit.
        origin: Time zero by the calendar, in local time; None if it is not known.
        is_segmented: Whether the panel has independent segments.

    Raises:
        InputDataError: if a given period is longer than half the log, or shorter than two gaps.
        ValueError: if ``season`` is a word other than "auto", or not positive.
    """
    cells, gap, unit = search.cells, search.units.time, duration(time_unit)

    def none_since(reason: str) -> list[Season]:
        search.messages.append(f"No season was looked for, since {reason}.")
        return []

    if isinstance(season, Season):
        given = season.in_unit_of_time(gap)
        if isinstance(given, WorkweekSeason) and not _has_both(given, cells):
            search.messages.append(
                "The log has only working days, or only weekends: a season of one profile is "
                "fitted."
            )
            given = _periodic(given.length)
        return [given]
    if season != "auto":
        return [_given(season, cells, gap, is_segmented)]
    if is_segmented:
        first = np.flatnonzero(cells.starts)
        last = np.append(first[1:], len(cells.times)) - 1
        ends = {*zip(cells.times[first], cells.times[last], strict=True)}
        if len(ends) > 1 or len(first) < PERIODS:
            return none_since(
                "the segments have different ranges of times; give `season`, or restart the times "
                "with each segment"
            )
        (start, stop) = ends.pop()
        count = min(MAX_HARMONICS, int(last[0] - first[0]))
        return [SegmentProfile(stop - start, count, start)]
    if unit is None and len(cells.lags) > 2:
        return none_since("the times have unequal gaps and are no timestamps; give `season`")
    if unit is None:
        flat = search.fit(EXPONENTIAL, None)
        return [_periodic(period) for period in find_periods(flat, cells)]
    day = parse_timedelta("day", "1D") / unit / gap
    fitting = [period for period in (day, 7 * day) if PERIODS * period <= cells.span + 1]
    if not fitting:
        spanned = f"{cells.span * gap:.4g} × {time_unit}"
        return none_since(f"the log, {spanned} long, does not span two days")
    seasons: list[Season] = [_periodic(period) for period in fitting if period >= 4]
    if origin is not None and seasons:
        midnight, length = origin.normalize(), seasons[0].length
        monday = (midnight - origin) / (gap * unit) - midnight.dayofweek * length
        week = WorkweekSeason(length, min(WORKWEEK_HARMONICS, int(length / 2)), monday)
        seasons += [week] if _has_both(week, cells) else []
    return seasons


def find_periods(flat: Maximum, cells: Cells) -> list[float]:
    """Return the periods at which a panel has most more power than drift and noise explain.

    It is the periodogram of the standardized innovations, prediction errors by the fit along the
    modes of its covariance, which is flat where there is no season. It is summed over the modes, by
    the share of drift in their variance, and over the first three harmonics. Which is the period,
    and whether the log has a season, is for the evidence to say.

    Args:
        flat: A fit without a season.
        cells: A panel of one segment with equal gaps.

    Returns:
        The largest :data:`PEAKS` peaks, in units of one gap; none if the log is too short for any.
    """
    form, theta = flat.form, flat.theta
    assert isinstance(form, CommonForm)
    filtered, outputs = form.filter(theta, flat.regressors.removed_from(cells).values)
    noise = form.dynamics(theta).noise.numpy()
    modes = form.apart(torch.as_tensor(theta))[0].numpy() if cells.is_full else np.eye(len(noise))
    drift = form.variances_along(theta, modes)
    series = filtered.innovations(outputs.unsqueeze(-1))[0].flatten(1).numpy()
    series = series * np.sqrt(drift / (drift + noise)) / np.maximum(series.std(axis=0), 1e-300)
    T = len(series)
    # From four periods in the log to four gaps in a period.
    places = np.arange(FOUND_PERIODS * OVERSAMPLING, OVERSAMPLING * T // 4 + 1).astype(int)
    if len(places) == 0:
        return []
    ratio = (np.abs(np.fft.rfft(series, n=OVERSAMPLING * T, axis=0)) ** 2).mean(1) / T
    total = np.zeros(len(places))
    for j, weight in enumerate(HARMONIC_WEIGHTS, start=1):
        inside = j * places < len(ratio)
        total[inside] += weight * ratio[j * places[inside]]
    around = np.pad(total, 1, constant_values=-np.inf)
    is_peak = (total >= around[:-2]) & (total >= around[2:])
    peaks = places[is_peak][np.argsort(-total[is_peak])]

    def lacking(place: float) -> float:
        """Return what is summed, negative, between the places."""
        orders = 1 + np.flatnonzero(place * np.arange(1, 1 + len(HARMONIC_WEIGHTS)) < len(ratio))
        angles = np.outer(orders * place, np.arange(T)) * 2 * math.pi / (OVERSAMPLING * T)
        powers = (np.abs(np.exp(-1j * angles) @ series) ** 2).mean(1)
        return -float(np.dot(HARMONIC_WEIGHTS[: len(orders)], powers))

    near = [(peak - 1, peak + 1) for peak in peaks[:PEAKS]]
    return [OVERSAMPLING * T / float(minimize_scalar(lacking, bounds=each).x) for each in near]


def _given(season: float | str, cells: Cells, gap: float, is_segmented: bool) -> Season:
    if isinstance(season, str) or not 0 < season < math.inf:
        raise ValueError(f"Expected a period, 'auto' or None as season. Got {season!r}.")
    longest = math.inf if is_segmented else cells.span + 1
    if not 2 <= season / gap <= longest / PERIODS:
        raise InputDataError(
            "Expected a season of at least two gaps between times, and at most half the log. Got "
            f"a period of {season:g}, with gaps of {gap:g} and a log {cells.span * gap:g} long."
        )
    return _periodic(season / gap)


def _periodic(period: float) -> PeriodicSeason:
    return PeriodicSeason(period, min(MAX_HARMONICS, int(period / 2)))


def _has_both(season: WorkweekSeason, cells: Cells) -> bool:
    """Return whether a panel has times on working days and on weekends."""
    weekend = season.is_weekend(cells.times)
    return bool(weekend.any() and not weekend.all())
