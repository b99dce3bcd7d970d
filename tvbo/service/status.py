"""The state of a run by its rows alone: no model is made, and nothing is imported for one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tvbo.recorded_trial import RecordedTrial
from tvbo.storage.rows import RunRows

WEEK = timedelta(days=7)
"""Span of the trials to look at, where times have a unit."""

NEWEST = 20
"""Number of the newest outcomes to look at, where they have none."""

BAND = 1.96
"""Standard deviations on each side of a mean that hold 95 %."""

MAX_SHOWN = 1_000
"""Number of open trials that are returned, the newest."""


def status(rows: RunRows, now: datetime | None = None) -> dict[str, Any]:
    """Return how many trials there are, what came of the newest, and what is known of the drift.

    Args:
        rows: The rows of the run.
        now: End of the week that is looked at, where times have a unit; None is the present.

    Returns:
        The number of trials in each state; ``open_trials``; ``last_week``, or ``newest`` where
        times are numbers; as of the newest ask ``in_the_model``, the number of observations held,
        ``drift``, ``half_life`` and ``hyperparameters``; and who changed the run last, and when.
    """
    run = rows.run
    opened = [trial for trial in rows.trials if trial.state == "open"][-MAX_SHOWN:]
    found: dict[str, Any] = {
        "optimizer": rows.class_name,
        **rows.counts,
        "open_trials": [
            {"trial": each.id, "t": rows.time_of(each), **each.parameters} for each in opened
        ],
    }
    if rows.counts["told"]:
        name = "newest" if rows.labels["time"] is None else "last_week"
        found[name] = _recent(rows, now or datetime.now(UTC))
    if rows.predictions:
        newest = rows.predictions[max(rows.predictions)]
        found |= {"in_the_model": newest["model_size"]}
        if newest["is_fitted"]:
            found["drift"] = newest["form"]
            found["half_life"] = finite(newest["half_life"])
            found["hyperparameters"] = newest["hyperparameters"]
    changed = datetime.fromtimestamp(run["changed_at"], UTC).isoformat(sep=" ", timespec="seconds")
    return found | {"changed_by": run["changed_by"], "changed_at": changed}


def _recent(rows: RunRows, now: datetime) -> dict[str, Any]:
    """Return what came of the trials of the last week, or of the newest.

    Returns:
        ``told``, their number, and ``since``; for each outcome its ``mean``, under its name where
        it has one; and of the first, where the model had learned before the ask, ``predicted``,
        their number, ``in_band``, how many are within the 95 % band of what was predicted then,
        and ``mean_error``, outcome less prediction.
    """
    told = sorted((trial for trial in rows.trials if trial.Y), key=lambda trial: trial.t)
    if rows.labels["time"] is None:
        told = told[-NEWEST:]
    else:
        end = now.replace(tzinfo=now.tzinfo or UTC).timestamp()
        begin = end - WEEK.total_seconds()
        told = [trial for trial in told if begin < (trial.nanoseconds or 0) / 1e9 <= end]
    if not told:
        return {"told": 0}
    found: dict[str, Any] = {"told": len(told), "since": rows.time_of(told[0])}
    names = rows.labels["outcomes"] or [""]
    for place, name in enumerate(names):
        mean = sum(trial.Y[place] for trial in told) / len(told)
        values = {"mean": mean, **(_predicted(rows, told) if place == 0 else {})}
        found |= {name: values} if name else values
    return found


def _predicted(rows: RunRows, told: Sequence[RecordedTrial]) -> dict[str, Any]:
    """Return how outcomes differ from what was predicted at their asks."""
    errors = []
    for trial in told:
        ask = rows.predictions.get(trial.id)
        if ask is not None and ask["is_fitted"] and trial.informative:
            error = trial.Y[0] - ask["mean"]
            errors.append((error, ask["variance"] + (ask["noise_variance"] or 0.0)))
    if not errors:
        return {}
    return {
        "predicted": len(errors),
        "in_band": sum(abs(error) <= BAND * math.sqrt(variance) for error, variance in errors),
        "mean_error": sum(error for error, _ in errors) / len(errors),
    }


def finite(value: float) -> float | None:
    """Return a number as JSON has it: None where it is infinite, or none."""
    return value if math.isfinite(value) else None
