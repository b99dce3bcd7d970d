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
    found = [
        *_coverage(calibration),
        *_dependence(calibration),
        *_outliers(calibration),
        *_bounds(trials, expected=False),
        *_unsettled(trials),
    ]
    lost = counts["failed"] + counts["expired"]
    if lost > 0 and lost >= LOST * (lost + counts["told"]):
        found.append(
            f"{lost} of {lost + counts['told']} trials that ended have no outcome "
            f"({counts['failed']} failed, {counts['expired']} expired): the model does not know "
            "the actions that they tried."
        )
    return found


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
    num_used = int(calibration.independent.sum())
    if num_used < len(calibration):
        sentences.append(
            f"Outcomes came late: {num_used} of {len(calibration)} have independent errors, and "
            "intervals are as of so many."
        )
    sentences += _drift(trials)
    sentences += _bounds(trials, expected=True)
    for state in ("skipped", "discarded"):
        if counts[state]:
            verb = "was" if counts[state] == 1 else "were"
            sentences.append(f"{_trials(counts[state])} {verb} {state} by retention.")
    if seconds:
        sentences.append(
            f"An ask took {statistics.median(seconds):.2g} s, the slowest {max(seconds):.2g} s."
        )
    return sentences


def verdict(calibration: Calibration, found: Sequence[str]) -> list[str]:
    """Return that nothing stands out, if that was measured, or that it was not."""
    num_used = int(calibration.independent.sum())
    if num_used < FEWEST:
        return [
            f"{num_used} independent outcomes of the fitted model are too few to judge it: "
            f"{FEWEST} or more are."
        ]
    return [] if found else [f"Nothing stands out in {len(calibration)} outcomes."]


def _coverage(calibration: Calibration) -> list[str]:
    low, high = calibration.coverage_interval
    if len(calibration) == 0:
        return []
    if low <= BAND <= high:
        return _spread(calibration)
    if low > BAND:
        return [
            f"{_covers(calibration)}: the model is less sure than it need be, since drift or noise "
            "are smaller than it believes."
        ]
    rest, (_, rest_high) = calibration.coverage_without_outliers
    if rest_high >= BAND and len(calibration.outliers) <= MANY * len(calibration):
        return [
            f"{_covers(calibration)}, {_percent(rest)} without outliers: these are what it misses."
        ]
    if _lags(calibration):
        return [f"{_covers(calibration)}: the drift is faster than the model believes."]
    return [
        f"{_covers(calibration)}: the model is too sure. The drift is faster, the function "
        "rougher, or the noise larger than it believes, or outcomes have outliers."
    ]


def _spread(calibration: Calibration) -> list[str]:
    low, high = calibration.deviation_limits
    words = (
        f"Errors are {calibration.deviation:.2f} predictive standard deviations in root mean square"
    )
    if calibration.deviation < low:
        return [
            f"{words}, by chance at least {low:.2f}: the model is less sure than it need be, since "
            "drift or noise are smaller than it believes."
        ]
    if calibration.deviation > high and not calibration.outliers:
        return [f"{words}, by chance at most {high:.2f}: the model is too sure."]
    return []


def _covers(calibration: Calibration) -> str:
    low, high = calibration.coverage_interval
    return (
        f"The {_percent(BAND)} band covers {_percent(calibration.coverage)} of {len(calibration)} "
        f"outcomes ({_percent(low)} to {_percent(high)})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _lags(calibration: Calibration) -> bool:
    return calibration.lag_correlation > _chance(calibration)


def _chance(calibration: Calibration) -> float:
    """Return the largest correlation of successive errors, and twice the error of their mean."""
    return 2 / math.sqrt(max(1, int(calibration.independent.sum())))


def _dependence(calibration: Calibration) -> list[str]:
    found = []
    correlation, chance = calibration.lag_correlation, _chance(calibration)
    if abs(correlation) > chance:
        words = (
            "predictions lag behind"
            if correlation > 0
            else "predictions overshoot, each against the error before it"
        )
        found.append(
            f"Errors of successive outcomes correlate by {correlation:.2f}, by chance up to "
            f"{chance:.2f}: {words}."
        )
    if len(calibration) > 0 and abs(calibration.mean) > BIAS * chance / 2:
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
    counts = Counter(reached[:3] for trial in fitted for reached in trial.at_bounds)
    newest = {reached[:3]: reached for trial in fitted for reached in trial.at_bounds}
    found = []
    for key, reached in newest.items():
        if ((reached.name, reached.side) in EXPECTED) != expected:
            continue
        at_end = any(reached[:3] == key for reached in fitted[-1].at_bounds)
        if at_end or 2 * counts[key] >= len(fitted):
            found.append(
                f"{reached.name.replace('_', ' ')} ({reached.path}, entry {reached.entry}) is at "
                f"the {reached.side} bound of its constraint in {counts[key]} of {len(fitted)} "
                f"rounds{', the newest included' if at_end else ''}: {reached.meaning}."
            )
    return found


def _unsettled(trials: Sequence[PredictedTrial]) -> list[str]:
    fitted = [trial for trial in trials if trial.is_fitted]
    lives = [trial.half_life for trial in fitted[len(fitted) // 2 :]]
    if len(lives) < FEWEST or not all(map(math.isfinite, lives)):
        return []
    if max(lives) < UNSETTLED * min(lives):
        return []
    return [
        f"How fast it drifts has not settled: in the second half of the rounds the half-life of "
        f"correlation was between {min(lives):.3g} and {max(lives):.3g}."
    ]


def _drift(trials: Sequence[PredictedTrial]) -> list[str]:
    if not trials:
        return []
    newest = trials[-1]
    found = []
    if newest.form == "no drift":
        return ["The model takes the function for one that does not drift."]
    rate = newest.parameters.get("forgetting_rate")
    unit, units = _unit(trials)
    words = newest.form if rate is None else f"{newest.form} with ε = {rate:.3g} {unit}"
    if math.isfinite(newest.half_life):
        words += f": correlation with what was learned is one half after {newest.half_life:.3g} "
        words += units
    found.append(f"The newest model has {words}.")
    forms = [trial.form for trial in trials if trial.is_fitted]
    changes = sum(one != other for one, other in pairwise(forms))
    if changes:
        times = "once" if changes == 1 else f"{changes} times"
        found.append(f"The form of drift changed {times} in {len(forms)} rounds.")
    return found


def _unit(trials: Sequence[PredictedTrial]) -> tuple[str, str]:
    """Return the unit of time as text: rounds, where trials are one unit apart."""
    times = sorted({trial.prediction.t for trial in trials})
    gaps = [later - one for one, later in pairwise(times)]
    is_round = len(times) == len(trials) and all(gap == 1 for gap in gaps)
    return ("a round", "rounds") if is_round else ("per unit of time", "units of time")


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"
