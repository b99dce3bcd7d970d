"""Diagnose a run: were outcomes as the model predicted them, and what that says of the model."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv, chdtri, ndtr, ndtri

from tvbo.models.at_bounds import EXPECTED, AtBound
from tvbo.optimizers import Optimizer
from tvbo.recorded_trial import RecordedTrial
from tvbo.storage import RunRows, read_run
from tvbo.storage.rows import damaged
from tvbo.values import shortened

if TYPE_CHECKING:
    import pandas as pd

BAND = 0.95
"""Probability of the central band of a prediction, and of the interval for its coverage."""

RARE = 0.01
"""Probability that a right model has an outlier among all outcomes, at most."""

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


@dataclass(frozen=True)
class Calibration:
    r"""Standardized errors of one-step-ahead predictions.

    While the model is right, the errors :math:`z = (y - m) / s`, with ``m`` and ``s`` from the
    outcomes observed before the ask and ``s`` including the noise, are standard normal. Two of them
    are independent if the later trial was asked after the earlier one was observed. Where outcomes
    come late, those counted as independent begin with the first outcome and go on each time with
    the first trial asked after the last of them was observed.

    Args:
        num_outcomes: Number of outcomes.
        num_independent: Number of those that are independent if the model is right.
        coverage: Share of the outcomes within the central 95 % band of their prediction; NaN
            without outcomes, as are the figures below.
        coverage_interval: 95 % interval for it (Clopper, Pearson, 1934), as of so many outcomes as
            are independent; (0, 1) without outcomes.
        mean: Mean of the independent errors.
        deviation: Root mean square of the errors, 1 if the model is right.
        deviation_limits: Range that it leaves with probability 0.01 if the model is right, from the
            distribution of χ² with as many degrees of freedom as errors are independent.
        lag_correlation: Correlation of successive independent errors; NaN for fewer than three,
            or if all are equal.
        outlier_limit: Error beyond which a right model has an outcome with probability 0.01 at
            most.
        outliers: Errors beyond it by the number of their trial, the largest first.
    """

    num_outcomes: int
    num_independent: int
    coverage: float
    coverage_interval: tuple[float, float]
    mean: float
    deviation: float
    deviation_limits: tuple[float, float]
    lag_correlation: float
    outlier_limit: float
    outliers: Mapping[int, float]


def calibration_of(trials: pd.DataFrame) -> Calibration:
    """Return the calibration of trials, rows of :class:`Diagnosis`, which were judged."""
    rows, observed = [], 0
    for row, (opened, ended) in enumerate(zip(trials.opened, trials.ended, strict=True)):
        if opened > observed:
            rows.append(row)
            observed = ended
    z, n = trials["z"].set_axis(trials["trial"]), len(rows)
    independent, tail = z.iloc[rows], (1 - BAND) / 2
    coverage = float((z.abs() <= ndtri(1 - tail)).mean())
    low = float(betaincinv(coverage * n, n - coverage * n + 1, tail)) if coverage > 0 else 0.0
    high = float(betaincinv(coverage * n + 1, n - coverage * n, 1 - tail)) if coverage < 1 else 1.0
    degrees = max(1, n)
    least, most = np.sqrt(chdtri(degrees, [1 - RARE / 2, RARE / 2]) / degrees).tolist()
    centered = (independent - independent.mean()).to_numpy()
    correlation = math.nan
    if n > 2 and centered.any():
        correlation = float(centered[1:] @ centered[:-1] / (centered @ centered))
    limit = -float(ndtri(RARE / (2 * max(1, len(z)))))
    outliers = z[z.abs() > limit].sort_values(key=abs, ascending=False)
    return Calibration(
        num_outcomes=len(z),
        num_independent=n,
        coverage=coverage,
        coverage_interval=(low, high),
        mean=float(independent.mean()),
        deviation=math.sqrt((z**2).mean()),
        deviation_limits=(least, most),
        lag_correlation=correlation,
        outlier_limit=limit,
        outliers=outliers.to_dict(),
    )


class DiagnosisError(ValueError):
    """A run that cannot be diagnosed."""


@dataclass(frozen=True)
class Diagnosis:
    """Whether the model of a run is to be trusted, by its predictions of outcomes not yet observed.

    Args:
        optimizer: Name of its class.
        trials: A row for each trial that was asked, in order: its number ``trial``, ``round`` and
            time ``t``; ``opened`` and ``ended``, numbers in the order of all changes of the run;
            ``mean`` and ``deviation`` of the prediction, noise included, by the ``model_size``
            observations held then; the ``outcome``, its error ``z`` in predictive standard
            deviations, and the predicted probability ``pit`` of a smaller one; whether the model
            was ``fitted`` by then, and whether the error is ``judged``; the ``form`` of drift, its
            ``half_life`` in units of time, parameters ``at_bounds``, and ``ask_seconds``; then
            hyperparameters in the user's units, NaN where the model had none of that name, and
            before the first fit.
        counts: Number of trials by state, and how many were discarded by retention, or attached.
    """

    optimizer: str
    trials: pd.DataFrame
    counts: Mapping[str, int]

    @property
    def hyperparameters(self) -> pd.DataFrame:
        """The columns of hyperparameters."""
        return self.trials.loc[:, "ask_seconds":].iloc[:, 1:]

    @cached_property
    def calibration(self) -> Calibration:
        """The errors of the predictions, of those made by a fitted model."""
        return calibration_of(self.trials[self.trials["judged"]])

    @cached_property
    def findings(self) -> list[str]:
        """What casts doubt on the model, one sentence each."""
        return list(_findings(self))

    def sentences(self) -> list[str]:
        """Return what the figures say: the findings, or that there are none, then facts.

        Each test of a finding errs in at most some 5 % of the runs of a right model.
        """
        return self.findings + list(_facts(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and sentences, in types of JSON; None for what is not finite."""
        rows = self.trials.to_dict("records")
        return {
            "optimizer": self.optimizer,
            "findings": self.findings,
            "sentences": self.sentences(),
            "counts": dict(self.counts),
            "calibration": {name: _finite(each) for name, each in asdict(self.calibration).items()},
            "trials": [{name: _finite(value) for name, value in row.items()} for row in rows],
        }

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def __str__(self) -> str:
        """Return the sentences, a line each."""
        return "\n".join(self.sentences())

    __repr__ = __str__


def diagnose(source: Optimizer | RunRows | str | Path) -> Diagnosis:
    """Compare each outcome of a run with what its model predicted before.

    What was predicted of a trial is read from the record of its ask: it rests on the outcomes that
    were observed by then. Predictions made before the first fit, and attached trials, are not
    judged; of several outcomes the first one is.

    Args:
        source: A recorded run: its file or URL, its rows, or the optimizer that is recorded.

    Raises:
        DiagnosisError: if it is no recorded run, its optimizer has no Gaussian process, or nothing
            was asked of it.
        tvbo.storage.StorageError: if the run cannot be read, or is damaged.

    Example:
        >>> print(diagnose("run.db"))
    """
    import pandas as pd

    found = source.recorded_at if isinstance(source, Optimizer) else source
    if not isinstance(found, RunRows | str | Path):
        raise DiagnosisError(
            "Expected a recorded run: its file, its URL, or its optimizer. Got "
            f"{shortened(repr(source))}, which is not recorded: record a run by "
            "optimizer.record(path) before its first ask."
        )
    rows = found if isinstance(found, RunRows) else read_run(found)
    asked = [trial for trial in rows.trials if trial.round is not None]
    if not asked:
        raise DiagnosisError("Expected a run in which a trial was asked. Got none.")
    if not rows.predictions:
        raise DiagnosisError(
            "Expected an optimizer with a Gaussian process, which predicts the outcomes. Got "
            f"{rows.class_name}."
        )
    discarded = sum(not trial.informative for trial in asked) - rows.counts["skipped"]
    attached = len(rows.trials) - len(asked)
    counts = {**rows.counts, "discarded": discarded, "attached": attached}
    trials = pd.DataFrame([_row_of(rows, trial) for trial in asked])
    return Diagnosis(rows.class_name, trials, counts)


def _row_of(rows: RunRows, trial: RecordedTrial) -> dict[str, Any]:
    """Return a trial that was asked, with what was predicted of it."""
    outcome = trial.Y[0] if trial.Y else math.nan
    try:
        ask = rows.predictions[trial.id]
        is_fitted, expected = ask["is_fitted"], ask["noise_variance"]
        hyperparameters = dict(ask["hyperparameters"])
        if expected is not None:
            hyperparameters["noise_deviation"] = math.sqrt(expected)
        noise = trial.Yvar[0] if trial.Yvar else expected
        deviation = math.nan if noise is None else math.sqrt(ask["variance"] + noise)
        # Where there is neither variance nor noise, an error has no unit.
        z = (outcome - ask["mean"]) / (deviation or math.nan)
        row = {
            "trial": trial.id,
            **{name: getattr(trial, name) for name in ("round", "t", "opened", "ended")},
            "mean": ask["mean"],
            "deviation": deviation,
            "outcome": outcome,
            "z": z,
            "pit": float(ndtr(z)),
            "judged": is_fitted and math.isfinite(z),
            "fitted": is_fitted,
            **{name: ask[name] for name in ("model_size", "form", "half_life")},
            "at_bounds": [
                AtBound(str(path), int(entry), str(side), float(value))
                for path, entry, side, value in ask["at_bounds"]
            ],
            "ask_seconds": ask["seconds"],
        }
        named = {name: float(value) for name, value in hyperparameters.items() if is_fitted}
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(rows.name, f"the ask of trial {trial.id}") from error
    # A name that is forged replaces no column.
    return row | named | row


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what casts doubt on the model, one sentence each."""
    trials, counts = diagnosis.trials, diagnosis.counts
    if diagnosis.calibration.num_outcomes > 0:
        yield from _width(diagnosis)
        yield from _dependence(diagnosis.calibration)
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


def _facts(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what else the figures say, one sentence each."""
    trials, counts, calibration = diagnosis.trials, diagnosis.counts, diagnosis.calibration
    num_outcomes, num_independent = calibration.num_outcomes, calibration.num_independent
    low, high = calibration.coverage_interval
    if num_independent < FEWEST:
        yield (
            f"{num_independent} independent outcomes of the fitted model are too few to judge it: "
            f"{FEWEST} or more are."
        )
    elif not diagnosis.findings:
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


def _width(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield whether bands are too narrow or too wide, and which outcomes are outliers."""
    trials, calibration = diagnosis.trials, diagnosis.calibration
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
