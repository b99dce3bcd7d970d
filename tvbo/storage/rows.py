"""The rows of a run as they are, read without a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, Table, select

from tvbo.storage.database import (
    Database,
    StorageError,
    ask_table,
    outcome_table,
    run_table,
    trial_table,
)

if TYPE_CHECKING:
    import pandas as pd

STATES = ("told", "open", "failed", "expired", "skipped")
"""States of a trial."""


@dataclass(frozen=True)
class RunRows:
    """The rows of a run.

    Args:
        name: What the run is called.
        run: Its settings and state, by column.
        trials: Its trials, oldest first, by column; ``parameters`` are values by name.
        outcomes: Outcomes and their variances by the number of their trial.
        asks: What was predicted at each ask, by the number of its trial.
    """

    name: str
    run: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]]
    outcomes: Mapping[int, tuple[list[float], list[float | None]]]
    asks: Mapping[int, Mapping[str, Any]]

    @cached_property
    def labels(self) -> Mapping[str, Any]:
        """Names of the outcomes and the unit of time."""
        labels: Mapping[str, Any] = parse_json(self.run["labels"])
        return labels

    @property
    def outcome_names(self) -> list[str]:
        """Columns of the outcomes in a table."""
        return self.labels["outcomes"] or ["outcome"]

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials in each state."""
        states = [trial["state"] for trial in self.trials]
        return {state: states.count(state) for state in STATES}

    def time_of(self, trial: Mapping[str, Any]) -> float | str:
        """Return the time of a trial: a number, or a timestamp in ISO 8601 to the microsecond."""
        if (scale := self.labels["time"]) is None:
            return float(trial["t"])
        stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=trial["nanoseconds"] / 1e3
        )
        zone = scale["zone"]
        return (
            stamp.replace(tzinfo=None) if zone is None else stamp.astimezone(ZoneInfo(zone))
        ).isoformat()

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each trial, oldest first.

        Returns:
            Columns ``trial``, ``how`` (asked or attached), ``t``, the parameters of action and
            context by name or as ``action_i`` and ``context_i``, ``state``, the outcomes by name
            and their variances, and ``reason``.
        """
        import pandas as pd

        variances = [f"{name}_variance" for name in self.outcome_names]
        rows = []
        for trial in self.trials:
            row = {"trial": trial["id"], "how": "attached" if trial["round"] is None else "asked"}
            row |= {"t": self.time_of(trial), **trial["parameters"], "state": trial["state"]}
            Y, Yvar = self.outcomes.get(trial["id"], ([], []))
            row |= dict(zip(self.outcome_names, Y, strict=False))
            row |= dict(zip(variances, Yvar, strict=False))
            rows.append(row | {"reason": trial["reason"]})
        first, last = ["trial", "how", "t"], ["state", *self.outcome_names, *variances, "reason"]
        names = dict.fromkeys(name for row in rows for name in row)
        between = [name for name in names if name not in (*first, *last)]
        frame = pd.DataFrame(rows).reindex(columns=[*first, *between, *last])
        if self.labels["time"] is not None and rows:
            frame["t"] = pd.to_datetime(frame["t"], format="ISO8601")
        numbers = {name: float for name in (*self.outcome_names, *variances)}
        return frame.astype(numbers)


def read_run(url: str | Path, wait: float = 60.0) -> RunRows:
    """Read the rows of a run; no model is made, and nothing is changed.

    Args:
        url: The file, or the URL of a database.
        wait: Seconds to wait while the database is away.

    Raises:
        StorageError: if there is no run, or one that is damaged or of another version.
    """
    database = Database(url, wait)
    with database.transaction() as connection:
        database.check(connection)
        run = read_one(connection, database.name)
        trials = read_trials(connection, database.name)
        asks = {
            row["trial"]: parsed(
                database.name, f"the ask of trial {row['trial']}", row["predicted"]
            )
            for row in rows_of(connection, ask_table)
        }
        return RunRows(database.name, run, trials, read_outcomes(connection), asks)


def read_one(connection: Connection, name: str) -> dict[str, Any]:
    """Return the row of a run by column."""
    [run] = rows_of(connection, run_table)
    return run


def read_trials(connection: Connection, name: str) -> list[dict[str, Any]]:
    """Return the trials of a run, oldest first, with their values as they are checked.

    Raises:
        StorageError: naming the first one that is damaged or lost.
    """
    trials = rows_of(connection, trial_table)
    trials.sort(key=lambda trial: trial["id"])
    for number, trial in enumerate(trials, start=1):
        if trial["id"] != number:
            raise StorageError(f"Expected trial {number} in {name}. Got none: it is lost.")
        for column in ("parameters", "X", "context"):
            if (text := trial[column]) is not None:
                trial[column] = parsed(name, f"{column} of trial {number}", text)
        good = trial["state"] in STATES and math.isfinite(trial["t"])
        if not good or (trial["ended"] is None) != (trial["state"] in ("open", "skipped")):
            raise StorageError(f"Expected a whole run. Got {name}, damaged in trial {number}.")
    return trials


def read_outcomes(connection: Connection) -> dict[int, tuple[list[float], list[float | None]]]:
    """Return outcomes and their variances by the number of their trial."""
    found: dict[int, tuple[list[float], list[float | None]]] = {}
    rows = rows_of(connection, outcome_table)
    for row in sorted(rows, key=lambda row: (row["trial"], row["place"])):
        values, variances = found.setdefault(row["trial"], ([], []))
        values.append(row["value"])
        variances.append(row["variance"])
    return found


def rows_of(connection: Connection, table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table by column."""
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in connection.execute(select(table))]


def parse_json(text: Any) -> Any:
    """Return what a text says in JSON.

    Raises:
        ValueError: if the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error


def parsed(name: str, what: str, text: Any) -> Any:
    """Return what a text says in JSON.

    Raises:
        StorageError: naming what cannot be read.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise StorageError(
            f"Expected a whole run. Got {name}, damaged in {what}: {error}."
        ) from error
