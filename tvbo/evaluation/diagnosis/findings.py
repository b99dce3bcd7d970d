"""What the figures of a diagnosis mean, in sentences."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tvbo.evaluation.diagnosis.calibration import BAND, Calibration, PredictedTrial
from tvbo.models.at_bounds import EXPECTED

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
    trials: Sequence[PredictedTrial], calibration: Calibration, counts: Mapping[str, int]
) -> Iterator[str]:
    """Yield what casts doubt on the model, one sentence each."""
    if len(calibration) > 0:
        yield from _width(calibration)
        yield from _dependence(calibration)
        yield from _outliers(calibration)
    yield from _bounds(trials, expected=False)
    fitted = [trial for trial in trials if trial.is_fitted]
    lives = [trial.half_life for trial in fitted[len(fitted) // 2 :]]
    is_known = len(lives) >= FEWEST and all(map(math.isfinite, lives))
    if is_known and max(lives) >= UNSETTLED * min(lives):
        yield (
            "How fast it drifts has not settled: in the second half of the rounds the half-life of "
            f"correlation was between {min(lives):.3g} and {max(lives):.3g}."
        )
    lost = counts["failed"] + counts["expired"]
    if lost > 0 and lost >= LOST * (lost + counts["told"]):
        yield (
            f"{lost} of {lost + counts['told']} trials that ended have no outcome "
            f"({counts['failed']} failed, {counts['expired']} expired): the model does not know "
            "the actions that they tried."
        )


def facts(
    trials: Sequence[PredictedTrial],
    calibration: Calibration,
    counts: Mapping[str, int],
    seconds: Sequence[float],
) -> Iterator[str]:
    """Yield what else the figures say, one sentence each."""
    low, high = calibration.coverage_interval
    if len(calibration) > 0 and low <= BAND <= high:
        yield f"{_covers(calibration)}, as that of a right model may."
    if calibration.num_independent < len(calibration):
        yield (
            f"Outcomes came late: {calibration.num_independent} of {len(calibration)} have "
            "independent errors, and intervals are as of so many."
        )
    yield from _drift(trials)
    yield from _bounds(trials, expected=True)
    for state in ("skipped", "discarded"):
        if count := counts[state]:
            were = "trial was" if count == 1 else "trials were"
            yield f"{count} {were} {state} by retention."
    if seconds:
        yield f"An ask took {statistics.median(seconds):.2g} s, the slowest {max(seconds):.2g} s."


def _covers(calibration: Calibration) -> str:
    low, high = calibration.coverage_interval
    return (
        f"The {100 * BAND:.0f} % band covers {100 * calibration.coverage:.0f} % of "
        f"{len(calibration)} outcomes ({100 * low:.0f} % to {100 * high:.0f} %)"
    )


def _width(calibration: Calibration) -> Iterator[str]:
    """Yield whether bands are too narrow or too wide, by their coverage, else by the errors."""
    (low, high), covers = calibration.coverage_interval, _covers(calibration)
    (least, most), deviation = calibration.deviation_limits, calibration.deviation
    errors = f"Errors are {deviation:.2f} predictive standard deviations in root mean square"
    unsure = (
        "the model is less sure than it need be, since drift or noise are smaller than it believes."
    )
    rest = calibration.without_outliers
    are_few = len(calibration) - len(rest) <= MANY * len(calibration)
    if low > BAND:
        yield f"{covers}: {unsure}"
    elif high >= BAND and deviation < least:
        yield f"{errors}, by chance at least {least:.2f}: {unsure}"
    elif high >= BAND and deviation > most and not calibration.outliers:
        yield f"{errors}, by chance at most {most:.2f}: the model is too sure."
    elif high < BAND and rest.coverage_interval[1] >= BAND and are_few:
        share = f"{100 * rest.coverage:.0f} % without outliers"
        yield f"{covers}, {share}: these are what it misses."
    elif high < BAND and calibration.lag_correlation > _chance(calibration):
        yield f"{covers}: the drift is faster than the model believes."
    elif high < BAND:
        yield (
            f"{covers}: the model is too sure. The drift is faster, the function rougher, or the "
            "noise larger than it believes, or outcomes have outliers."
        )


def _chance(calibration: Calibration) -> float:
    """Return the largest correlation of successive errors, and twice the error of their mean."""
    return 2 / math.sqrt(calibration.num_independent)


def _dependence(calibration: Calibration) -> Iterator[str]:
    correlation, chance = calibration.lag_correlation, _chance(calibration)
    if abs(correlation) > chance:
        words = "overshoot, each against the error before it" if correlation < 0 else "lag behind"
        yield (
            f"Errors of successive outcomes correlate by {correlation:.2f}, by chance up to "
            f"{chance:.2f}: predictions {words}."
        )
    if abs(calibration.mean) > BIAS * chance / 2:
        side = "above" if calibration.mean > 0 else "below"
        yield (
            f"Outcomes are {side} their predictions by {abs(calibration.mean):.2f} predictive "
            "standard deviations on average."
        )


def _outliers(calibration: Calibration) -> Iterator[str]:
    far = calibration.outliers
    if 0 < len(far) <= MANY * len(calibration):
        worst = sorted(far, key=lambda trial: -abs(trial.z))[:NAMED]
        named = ", ".join(f"{trial.prediction.trial_id} ({trial.z:+.1f})" for trial in worst)
        count = f"{len(far)} outcomes are outliers" if len(far) > 1 else "One outcome is an outlier"
        largest = ", the largest" if len(far) > NAMED else ""
        yield (
            f"{count}, beyond {calibration.outlier_limit:.1f} predictive standard "
            f"deviations{largest}: trial {named}."
        )


def _bounds(trials: Sequence[PredictedTrial], expected: bool) -> Iterator[str]:
    """Yield a sentence for each parameter that ended at a bound, or was there half the time."""
    fitted = [trial for trial in trials if trial.is_fitted]
    # Without the value there, which differs from fit to fit.
    counts = Counter(reached._replace(value=0.0) for each in fitted for reached in each.at_bounds)
    for bound, count in counts.items():
        is_expected = (bound.name, bound.side) in EXPECTED
        at_end = any(reached[:3] == bound[:3] for reached in fitted[-1].at_bounds)
        if is_expected == expected and (at_end or 2 * count >= len(fitted)):
            yield (
                f"{bound.name.replace('_', ' ')} ({bound.path}, entry {bound.entry}) is at the "
                f"{bound.side} bound of its constraint in {count} of {len(fitted)} rounds"
                f"{', the newest included' if at_end else ''}: {bound.meaning}."
            )


def _drift(trials: Sequence[PredictedTrial]) -> Iterator[str]:
    """Yield the newest form of drift, and how often it changed."""
    newest = trials[-1]
    if newest.form == "no drift":
        yield "The model takes the function for one that does not drift."
        return
    times = sorted({trial.prediction.t for trial in trials})
    is_round = len(times) == len(trials) and all(b - a == 1 for a, b in pairwise(times))
    unit, units = ("a round", "rounds") if is_round else ("per unit of time", "units of time")
    rate, half_life = newest.parameters.get("forgetting_rate"), newest.half_life
    pace = "" if rate is None else f" with ε = {rate:.3g} {unit}"
    if math.isfinite(half_life):
        pace += f": correlation with what was learned is one half after {half_life:.3g} {units}"
    yield f"The newest model has {newest.form}{pace}."
    forms = [trial.form for trial in trials if trial.is_fitted]
    if changes := sum(one != other for one, other in pairwise(forms)):
        often = "once" if changes == 1 else f"{changes} times"
        yield f"The form of drift changed {often} in {len(forms)} rounds."
