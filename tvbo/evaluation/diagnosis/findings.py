"""What the figures of a diagnosis mean, in sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tvbo.evaluation.diagnosis.calibration import BAND, Calibration, calibration_of
from tvbo.models.at_bounds import EXPECTED

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20
"""Number of independent outcomes below which nothing is said to be in order."""

NAMED = 5
"""Number of outliers that are named."""

MANY = 0.15
"""Share of outliers above which they are no exceptions, and are not named."""

LOST = 1 / 3
"""Share of trials without an outcome from which on it is a finding."""

UNSETTLED = 10.0
"""Ratio of the longest to the shortest half-life in the second half of the rounds, likewise."""

BIAS = 3.0
"""Mean error, in its standard errors, likewise."""


def findings(
    trials: pd.DataFrame, calibration: Calibration, counts: Mapping[str, int]
) -> Iterator[str]:
    """Yield what casts doubt on the model, one sentence each."""
    if calibration.num_outcomes > 0:
        yield from _width(trials, calibration)
        yield from _dependence(calibration)
    yield from _bounds(trials, expected=False)
    fitted = trials.half_life[trials.fitted]
    lives = fitted.iloc[len(fitted) // 2 :]
    shortest, longest = lives.min(), lives.max()
    is_known = len(lives) >= FEWEST and bool(np.isfinite(lives).all())
    if is_known and longest >= UNSETTLED * shortest:
        yield (
            "How fast it drifts has not settled: in the second half of the rounds the half-life of "
            f"correlation was between {shortest:.3g} and {longest:.3g}."
        )
    lost = counts["failed"] + counts["expired"]
    if lost > 0 and lost >= LOST * (lost + counts["told"]):
        yield (
            f"{lost} of {lost + counts['told']} trials that ended have no outcome "
            f"({counts['failed']} failed, {counts['expired']} expired): the model does not know "
            "the actions that they tried."
        )


def facts(
    trials: pd.DataFrame, calibration: Calibration, counts: Mapping[str, int], are_found: bool
) -> Iterator[str]:
    """Yield what else the figures say, one sentence each, if there are findings or none."""
    num_outcomes, num_independent = calibration.num_outcomes, calibration.num_independent
    low, high = calibration.coverage_interval
    if num_independent < FEWEST:
        yield (
            f"{num_independent} independent outcomes of the fitted model are too few to judge it: "
            f"{FEWEST} or more are."
        )
    elif not are_found:
        yield f"Nothing stands out in {num_outcomes} outcomes."
    if num_outcomes > 0 and low <= BAND <= high:
        yield f"{_covers(calibration)}, as that of a right model may."
    if num_independent < num_outcomes:
        yield (
            f"Outcomes came late: {num_independent} of {num_outcomes} have independent errors, and "
            "intervals are as of so many."
        )
    yield from _drift(trials)
    yield from _bounds(trials, expected=True)
    for count, words in (
        (sum(~trials.fitted), "asked before the first fit, and not judged"),
        (counts["attached"], "attached, of which nothing was predicted"),
        (counts["skipped"], "skipped by retention"),
        (counts["discarded"], "discarded by retention"),
    ):
        if count > 0:
            yield f"{count} {'trial was' if count == 1 else 'trials were'} {words}."
    # The actions of a batch are chosen one after another.
    seconds = trials.groupby("round").ask_seconds.max()
    yield (
        f"Asks took {seconds.sum():.3g} s together, {seconds.median():.2g} s in the median and "
        f"{seconds.max():.2g} s at most."
    )


def _covers(calibration: Calibration) -> str:
    low, high = calibration.coverage_interval
    return (
        f"The {100 * BAND:.0f} % band covers {100 * calibration.coverage:.0f} % of "
        f"{calibration.num_outcomes} outcomes ({100 * low:.0f} % to {100 * high:.0f} %)"
    )


def _width(trials: pd.DataFrame, calibration: Calibration) -> Iterator[str]:
    """Yield whether bands are too narrow or too wide, and which outcomes are outliers."""
    (low, high), (least, most) = calibration.coverage_interval, calibration.deviation_limits
    deviation, limit, far = calibration.deviation, calibration.outlier_limit, calibration.outliers
    are_few = 0 < len(far) <= MANY * calibration.num_outcomes
    rest = calibration_of(trials[trials.judged & (trials.z.abs() <= limit)])
    figures = (
        f"{_covers(calibration)}, and errors are {deviation:.2f} predictive deviations in root "
        f"mean square, by chance {least:.2f} to {most:.2f}"
    )
    if low > BAND or (high >= BAND and deviation < least):
        yield (
            f"{figures}: the model is less sure than it need be, since drift or noise are smaller "
            "than it believes."
        )
    elif high < BAND and are_few and rest.coverage_interval[1] >= BAND:
        share = f"{100 * rest.coverage:.0f} % without outliers"
        yield f"{figures}; {share}: these are what the model misses."
    elif high < BAND or (deviation > most and len(far) == 0):
        causes = "The drift is faster than it believes"
        if not calibration.lag_correlation > _chance(calibration):
            causes += ", the function rougher, or the noise larger, or outcomes have outliers"
        yield f"{figures}: the model is too sure. {causes}."
    if are_few:
        named = ", ".join(f"{trial} ({z:+.1f})" for trial, z in list(far.items())[:NAMED])
        count = f"{len(far)} outcomes are outliers" if len(far) > 1 else "One outcome is an outlier"
        largest = ", the largest" if len(far) > NAMED else ""
        yield f"{count}, beyond {limit:.1f} predictive standard deviations{largest}: trial {named}."


def _chance(calibration: Calibration) -> float:
    """Return twice the standard error of mean and correlation if the model is right."""
    return 2 / math.sqrt(calibration.num_independent)


def _dependence(calibration: Calibration) -> Iterator[str]:
    """Yield whether errors depend on those before them, or are not zero on average."""
    correlation, mean, chance = calibration.lag_correlation, calibration.mean, _chance(calibration)
    if abs(correlation) > chance:
        words = "overshoot, each against the error before it" if correlation < 0 else "lag behind"
        yield (
            f"Errors of successive outcomes correlate by {correlation:.2f}, by chance up to "
            f"{chance:.2f}: predictions {words}."
        )
    if abs(mean) > BIAS * chance / 2:
        yield (
            f"Outcomes are {'above' if mean > 0 else 'below'} their predictions by {abs(mean):.2f} "
            "predictive standard deviations on average."
        )


def _bounds(trials: pd.DataFrame, expected: bool) -> Iterator[str]:
    """Yield a sentence for each parameter that ended at a bound, or was there half the time."""
    reached = [
        # Without the value there, which differs from fit to fit.
        [bound._replace(value=0.0) for bound in bounds]
        for bounds in trials.at_bounds[trials.fitted]
    ]
    for bound, count in Counter(chain.from_iterable(reached)).items():
        is_expected, at_end = (bound.name, bound.side) in EXPECTED, bound in reached[-1]
        if is_expected == expected and (at_end or 2 * count >= len(reached)):
            yield (
                f"{bound.name.replace('_', ' ')} ({bound.path}, entry {bound.entry}) is at the "
                f"{bound.side} bound of its constraint in {count} of {len(reached)} rounds"
                f"{', the newest included' if at_end else ''}: {bound.meaning}."
            )


def _drift(trials: pd.DataFrame) -> Iterator[str]:
    """Yield the newest form of drift, and how often it changed."""
    newest = trials.iloc[-1]
    if newest.form == "no drift":
        yield "The model takes the function for one that does not drift."
        return
    is_round = bool((trials.t.sort_values().diff().iloc[1:] == 1).all())
    unit, units = ("a round", "rounds") if is_round else ("per unit of time", "units of time")
    rate, half_life = newest.get("forgetting_rate", math.nan), newest.half_life
    pace = f" with ε = {rate:.3g} {unit}" if math.isfinite(rate) else ""
    if math.isfinite(half_life):
        pace += f": correlation with what was learned is one half after {half_life:.3g} {units}"
    yield f"The newest model has {newest.form}{pace}."
    forms = trials.form[trials.fitted]
    if changes := sum((forms != forms.shift()).iloc[1:]):
        often = "once" if changes == 1 else f"{changes} times"
        yield f"The form of drift changed {often} in {len(forms)} rounds."
