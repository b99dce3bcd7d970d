"""What the figures of a diagnosis mean, in sentences."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
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
) -> list[str]:
    """Return what casts doubt on the model, one sentence each."""
    found = []
    if len(calibration) > 0:
        found += [*_width(calibration), *_dependence(calibration), *_outliers(calibration)]
    found += _bounds(trials, expected=False)
    fitted = [trial for trial in trials if trial.is_fitted]
    lives = [trial.half_life for trial in fitted[len(fitted) // 2 :]]
    is_known = len(lives) >= FEWEST and all(map(math.isfinite, lives))
    if is_known and max(lives) >= UNSETTLED * min(lives):
        found.append(
            "How fast it drifts has not settled: in the second half of the rounds the half-life of "
            f"correlation was between {min(lives):.3g} and {max(lives):.3g}."
        )
    lost = counts["failed"] + counts["expired"]
    if lost > 0 and lost >= LOST * (lost + counts["told"]):
        found.append(
            f"{lost} of {lost + counts['told']} trials that ended have no outcome "
            f"({counts['failed']} failed, {counts['expired']} expired): the model does not know "
            "the actions that they tried."
        )
    return found


def verdict(calibration: Calibration, found: Sequence[str]) -> list[str]:
    """Return that nothing stands out, if that was measured, or that it was not."""
    if calibration.num_independent < FEWEST:
        return [
            f"{calibration.num_independent} independent outcomes of the fitted model are too few "
            f"to judge it: {FEWEST} or more are."
        ]
    return [] if found else [f"Nothing stands out in {len(calibration)} outcomes."]


def facts(
    trials: Sequence[PredictedTrial],
    calibration: Calibration,
    counts: Mapping[str, int],
    seconds: Sequence[float],
) -> list[str]:
    """Return what else the figures say, one sentence each."""
    sentences = []
    low, high = calibration.coverage_interval
    if len(calibration) > 0 and low <= BAND <= high:
        sentences.append(f"{_covers(calibration)}, as that of a right model may.")
    if calibration.num_independent < len(calibration):
        sentences.append(
            f"Outcomes came late: {calibration.num_independent} of {len(calibration)} have "
            "independent errors, and intervals are as of so many."
        )
    sentences += _drift(trials)
    sentences += _bounds(trials, expected=True)
    for state in ("skipped", "discarded"):
        if count := counts[state]:
            were = "trial was" if count == 1 else "trials were"
            sentences.append(f"{count} {were} {state} by retention.")
    if seconds:
        sentences.append(
            f"An ask took {statistics.median(seconds):.2g} s, the slowest {max(seconds):.2g} s."
        )
    return sentences


def _covers(calibration: Calibration) -> str:
    low, high = calibration.coverage_interval
    return (
        f"The {100 * BAND:.0f} % band covers {100 * calibration.coverage:.0f} % of "
        f"{len(calibration)} outcomes ({100 * low:.0f} % to {100 * high:.0f} %)"
    )


def _width(calibration: Calibration) -> list[str]:
    """Return whether bands are too narrow or too wide, by their coverage, else by the errors."""
    (low, high), covers = calibration.coverage_interval, _covers(calibration)
    (least, most), deviation = calibration.deviation_limits, calibration.deviation
    errors = f"Errors are {deviation:.2f} predictive standard deviations in root mean square"
    unsure = (
        "the model is less sure than it need be, since drift or noise are smaller than it believes."
    )
    if low > BAND:
        return [f"{covers}: {unsure}"]
    if high >= BAND:
        if deviation < least:
            return [f"{errors}, by chance at least {least:.2f}: {unsure}"]
        if deviation > most and not calibration.outliers:
            return [f"{errors}, by chance at most {most:.2f}: the model is too sure."]
        return []
    rest = calibration.without_outliers
    if rest.coverage_interval[1] >= BAND and len(rest) >= (1 - MANY) * len(calibration):
        share = f"{100 * rest.coverage:.0f} % without outliers"
        return [f"{covers}, {share}: these are what it misses."]
    if calibration.lag_correlation > _chance(calibration):
        return [f"{covers}: the drift is faster than the model believes."]
    return [
        f"{covers}: the model is too sure. The drift is faster, the function rougher, or the noise "
        "larger than it believes, or outcomes have outliers."
    ]


def _chance(calibration: Calibration) -> float:
    """Return the largest correlation of successive errors, and twice the error of their mean."""
    return 2 / math.sqrt(calibration.num_independent)


def _dependence(calibration: Calibration) -> list[str]:
    found = []
    correlation, chance = calibration.lag_correlation, _chance(calibration)
    if abs(correlation) > chance:
        words = "overshoot, each against the error before it" if correlation < 0 else "lag behind"
        found.append(
            f"Errors of successive outcomes correlate by {correlation:.2f}, by chance up to "
            f"{chance:.2f}: predictions {words}."
        )
    if abs(calibration.mean) > BIAS * chance / 2:
        side = "above" if calibration.mean > 0 else "below"
        found.append(
            f"Outcomes are {side} their predictions by {abs(calibration.mean):.2f} predictive "
            "standard deviations on average."
        )
    return found


def _outliers(calibration: Calibration) -> list[str]:
    far = calibration.outliers
    if not 0 < len(far) <= MANY * len(calibration):
        return []
    worst = sorted(far, key=lambda trial: -abs(trial.z))[:NAMED]
    named = ", ".join(f"{trial.prediction.trial_id} ({trial.z:+.1f})" for trial in worst)
    count = f"{len(far)} outcomes are outliers" if len(far) > 1 else "One outcome is an outlier"
    largest = ", the largest" if len(far) > NAMED else ""
    return [
        f"{count}, beyond {calibration.outlier_limit:.1f} predictive standard deviations{largest}: "
        f"trial {named}."
    ]


def _bounds(trials: Sequence[PredictedTrial], expected: bool) -> list[str]:
    """Return a sentence for each parameter that ended at a bound, or was there half the time."""
    fitted = [trial for trial in trials if trial.is_fitted]
    # Without the value there, which differs from fit to fit.
    counts = Counter(reached._replace(value=0.0) for each in fitted for reached in each.at_bounds)
    found = []
    for bound, count in counts.items():
        if ((bound.name, bound.side) in EXPECTED) != expected:
            continue
        at_end = any(reached[:3] == bound[:3] for reached in fitted[-1].at_bounds)
        if at_end or 2 * count >= len(fitted):
            found.append(
                f"{bound.name.replace('_', ' ')} ({bound.path}, entry {bound.entry}) is at the "
                f"{bound.side} bound of its constraint in {count} of {len(fitted)} rounds"
                f"{', the newest included' if at_end else ''}: {bound.meaning}."
            )
    return found


def _drift(trials: Sequence[PredictedTrial]) -> list[str]:
    """Return the newest form of drift, and how often it changed."""
    if not trials:
        return []
    newest = trials[-1]
    if newest.form == "no drift":
        return ["The model takes the function for one that does not drift."]
    times = sorted({trial.prediction.t for trial in trials})
    is_round = len(times) == len(trials) and all(b - a == 1 for a, b in pairwise(times))
    unit, units = ("a round", "rounds") if is_round else ("per unit of time", "units of time")
    words = f"The newest model has {newest.form}"
    if (rate := newest.parameters.get("forgetting_rate")) is not None:
        words += f" with ε = {rate:.3g} {unit}"
    if math.isfinite(newest.half_life):
        words += (
            f": correlation with what was learned is one half after {newest.half_life:.3g} {units}"
        )
    forms = [trial.form for trial in trials if trial.is_fitted]
    changes = sum(one != other for one, other in pairwise(forms))
    if changes == 0:
        return [f"{words}."]
    often = "once" if changes == 1 else f"{changes} times"
    return [f"{words}.", f"The form of drift changed {often} in {len(forms)} rounds."]
