"""The state of a run by its rows alone: no model is made, and nothing is imported for one."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

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


def _recent(rows: RunRows, now: datetime) -> list[dict[str, Any]]:
    """Return what came of the trials of the last week, or of the newest: a row for each outcome.

    Returns:
        The ``outcome``; ``told``, the number of trials, ``since`` and ``mean``; and of the first
        outcome, where the model had learned before the ask, ``predicted``, their number,
        ``in_band``, how many are within the 95 % band of what was predicted then, and
        ``mean_error``, outcome less prediction.
    """
    told = sorted((trial for trial in rows.trials if trial.Y), key=lambda trial: trial.t)
    if rows.labels["time"] is None:
        told = told[-NEWEST:]
    else:
        end = now.replace(tzinfo=now.tzinfo or UTC).timestamp()
        begin = end - WEEK.total_seconds()
        told = [trial for trial in told if begin < (trial.nanoseconds or 0) / 1e9 <= end]
    if not told:
        return []
    shared = {"told": len(told), "since": rows.time_of(told[0])}
    means = [sum(Y) / len(told) for Y in zip(*(trial.Y for trial in told), strict=True)]
    names = zip(rows.outcome_names, means, strict=True)
    first, *others = [{"outcome": name, **shared, "mean": mean} for name, mean in names]
    errors = []
    for trial in told:
        ask = rows.predictions.get(trial.id)
        if ask is not None and ask["is_fitted"] and trial.informative:
            error = trial.Y[0] - ask["mean"]
            errors.append((error, ask["variance"] + (ask["noise_variance"] or 0.0)))
    if errors:
        first["predicted"] = len(errors)
        first["in_band"] = sum(abs(error) <= BAND * math.sqrt(spread) for error, spread in errors)
        first["mean_error"] = sum(error for error, _ in errors) / len(errors)
    return [first, *others]


def finite(value: float) -> float | None:
    """Return a number as JSON has it: None where it is infinite, or none."""
    return value if math.isfinite(value) else None
