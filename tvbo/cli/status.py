"""``tvbo status``: what is recommended now, and what to think of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tvbo.cli.app import Run, note, print_rows, print_values
from tvbo.cli.options import As, Context, Time, context_of, plain, time_of
from tvbo.cli.recent import recent_outcomes
from tvbo.cli.space_file import optimizer_of_run
from tvbo.optimizers import GPOptimizer, Recommendation
from tvbo.storage import JournalReader

TABLES = {
    "last_week": "Outcomes of the last week",
    "newest": "Newest outcomes",
    "open_trials": "Open trials",
    "front": "The best compromises now",
}
"""Titles of what is printed in a table of its own."""

CAPTION = (
    "in_band: within the 95 % band of what those before predict. mean_error: outcome less "
    "prediction. change: of the expected outcome of what is recommended."
)


def status(run: Run, context: Context = None, t: Time = None, as_json: As = False) -> None:
    """Say what is recommended now, how fast it drifts, and which trials are open.

    Reads only, also while another command writes.
    """
    optimizer = GPOptimizer.open(run, like=optimizer_of_run(run), read_only=True, progress=False)
    found = _status(optimizer, run, context, t)
    if as_json:
        typer.echo(json.dumps(found))
        return
    values = {n.replace("_", " "): value for n, value in found.items() if n not in TABLES}
    print_values(run.name, values)
    for name, title in TABLES.items():
        if (rows := found.get(name)) and isinstance(rows, list):
            print_rows(title, rows)
        elif rows:
            # Of several outcomes, each has its values under its name.
            each = {n: value for n, value in rows.items() if isinstance(value, dict)}
            shared = {n: value for n, value in rows.items() if n not in each}
            lines = [{"outcome": n} | shared | value for n, value in each.items()] or [shared]
            print_rows(title, lines, CAPTION)
    if optimizer.contexts is not None and not context:
        note("what is recommended depends on the context: give --context NAME=VALUE.")


def _status(
    optimizer: GPOptimizer, run: Path, context: Sequence[str] | None, t: str | None
) -> dict[str, Any]:
    log = optimizer.trial_log
    opened = [trial.to_row() for trial in optimizer.open_trials]
    found: dict[str, Any] = {
        "parameters": str(optimizer.search_space.parameters),
        "told": log.num_told,
        "open": len(opened),
        "failed": log.num_failed,
        "expired": log.num_expired,
        "in_the_model": optimizer.model_size,
        "open_trials": [{name: plain(value) for name, value in row.items()} for row in opened],
    }
    is_known = optimizer.contexts is None or bool(context)
    # Where times are counted, that of the newest ask.
    has_time = t is not None or optimizer.time_scale is not None
    now, best = time_of(optimizer, t) if has_time else None, None
    if log.num_told and is_known:
        given = context_of(optimizer, context), now
        if optimizer.goals.num_objectives > 1:
            found["front"] = [
                {name: plain(value) for name, value in each.to_row().items()}
                for each in optimizer.front(*given)
            ]
        else:
            best = optimizer.recommend(*given)
            found |= _recommended(best)
    if log.num_told:
        drift = optimizer.drift()
        found["drift"] = drift.form
        found["half_life"] = _finite(drift.half_life)
        if drift.half_life_interval is not None:
            found["half_life_interval"] = [_finite(each) for each in drift.half_life_interval]
        found["forgetting_rate"] = drift.forgetting_rate
        with JournalReader(run) as journal:
            name = "newest" if optimizer.time_scale is None else "last_week"
            found[name] = recent_outcomes(optimizer, journal, now, best, is_known)
    return found


def _recommended(best: Recommendation) -> dict[str, Any]:
    low, high = (best.mean + sign * 1.96 * best.standard_deviation for sign in (-1, 1))
    found = {
        "recommended": best.parameters,
        "expected_outcome": best.mean,
        "band": [low, high],
        "at": plain(best.labels.stamp(best.t)),
    }
    for name in ("feasibility", "probability_of_success"):
        if (probability := getattr(best, name)) is not None:
            found[name] = probability
    return found | {f"expected_{name}": mean for name, (mean, _) in best.others.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
