"""The rows of a run as they are, read without a model."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import repeat
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from zoneinfo import ZoneInfo

from sqlalchemy import Column, Connection, select

from tvbo.recorded_trial import RecordedTrial, State
from tvbo.storage.database import Database, Json, StorageError, run_table, trial_table

if TYPE_CHECKING:
    import pandas as pd

MAX_OUTCOME = 1e30
"""Largest outcome that a trial may have, as of ``Optimizer.tell``."""

STATES = get_args(State)
ENDED = frozenset(["told", "failed", "expired"])
"""States of a trial, and those in which it has ended."""

PREDICTED = {
    **dict.fromkeys(("mean", "variance", "half_life", "seconds"), float),
    "noise_variance": float | None,
    "is_fitted": bool,
    "model_size": int,
    "hyperparameters": dict,
    "form": str,
    "at_bounds": list,
    "best": list,
}
"""Types of what is predicted at an ask."""

LAST_SECOND = 253_402_300_799
"""The last second of the year 9999."""


@dataclass(frozen=True)
class RunRows:
    """The rows of a run.

    Args:
        name: What the run is called.
        run: Its settings and state, by column.
        trials: Its trials, oldest first.
    """

    name: str
    run: Mapping[str, Any]
    trials: Sequence[RecordedTrial]

    @property
    def labels(self) -> Mapping[str, Any]:
        """Names of the outcomes and the unit of time."""
        return self.run["labels"]

    @cached_property
    def predictions(self) -> Mapping[int, Mapping[str, Any]]:
        """What was predicted at the asks of a rule that has a model, by the number of the trial.

        Raises:
            StorageError: if one is damaged.
        """
        found = {}
        for trial in self.trials:
            if "mean" in (ask := trial.predicted):
                found[trial.id] = ask
                is_good = all(isinstance(ask.get(n), kind) for n, kind in PREDICTED.items())
                lengths = 0, len(trial.X)
                if not (is_good and _are_numbers(ask["best"]) and len(ask["best"]) in lengths):
                    raise damaged(self.name, f"the ask of trial {trial.id}")
        return found

    @property
    def class_name(self) -> str:
        """Name of the class of its optimizer."""
        return str(self.run["optimizer"]).rpartition(".")[-1]

    @property
    def outcome_names(self) -> list[str]:
        """Columns of the outcomes in a table."""
        return self.labels["outcomes"] or ["outcome"]

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials in each state."""
        states: list[str] = [trial.state for trial in self.trials]
        return {state: states.count(state) for state in STATES}

    def time_of(self, trial: RecordedTrial) -> float | str:
        """Return the time of a trial: a number, or a timestamp in ISO 8601 to the microsecond."""
        if trial.nanoseconds is None:
            return trial.observed_at
        zone = self.labels["time"]["zone"]
        stamp = datetime(1970, 1, 1, tzinfo=None if zone is None else UTC)
        stamp += timedelta(microseconds=self._nanoseconds_of(trial) / 1e3)
        return (stamp if zone is None else stamp.astimezone(ZoneInfo(zone))).isoformat()

    def _nanoseconds_of(self, trial: RecordedTrial) -> int:
        """Return the time of a trial, that of its outcome if it has one, since 1970."""
        if trial.measured is None:
            return trial.nanoseconds or 0
        from tvbo.spaces.labels import TimeScale

        try:
            return int(TimeScale(**self.labels["time"]).to_stamp(trial.measured).value)
        except (OverflowError, ValueError) as error:
            raise damaged(self.name, f"trial {trial.id}") from error

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
            row: dict[str, Any] = {"trial": trial.id}
            row |= {"how": "attached" if trial.round is None else "asked"}
            row |= {"t": self.time_of(trial), **trial.parameters, "state": trial.state}
            row |= dict(zip(self.outcome_names, trial.Y, strict=False))
            row |= dict(zip(variances, trial.Yvar, strict=False))
            rows.append(row | {"reason": trial.reason})
        first, last = ["trial", "how", "t"], ["state", *self.outcome_names, *variances, "reason"]
        names = dict.fromkeys(name for row in rows for name in row)
        between = [name for name in names if name not in (*first, *last)]
        frame = pd.DataFrame(rows).reindex(columns=[*first, *between, *last])
        if (scale := self.labels["time"]) is not None:
            # Of a zone with summer time, texts would have several offsets.
            stamps = pd.to_datetime([*map(self._nanoseconds_of, self.trials)], utc=True)
            zone = scale["zone"]
            frame["t"] = stamps.tz_localize(None) if zone is None else stamps.tz_convert(zone)
        numbers = {name: float for name in (*self.outcome_names, *variances)}
        return frame.astype(numbers)


@contextmanager
def without_collector() -> Iterator[None]:
    """Have the body make many objects without a search for cycles, which takes most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
        return read_rows(connection, database.name, *trial_table.c)


@without_collector()
def read_rows(connection: Connection, name: str, *columns: Column[Any]) -> RunRows:
    """Return the rows of a run.

    Args:
        connection: A transaction.
        name: What the run is called.
        *columns: Those of its trials; default all but what was predicted.

    Raises:
        StorageError: naming what is damaged, or the first trial that is damaged or lost.
    """
    columns_of_run = read_columns(connection, name, *run_table.c)
    run = {column: value for column, [value] in columns_of_run.items()}
    try:
        names, time = run["labels"]["outcomes"], run["labels"]["time"]
        are_texts = all(isinstance(each, str) for each in names)
        if time is not None and time["zone"] is not None:
            ZoneInfo(time["zone"])
    except (LookupError, OSError, TypeError, ValueError) as error:
        raise damaged(name, f"its labels: {error!r:.200}") from error
    if not are_texts:
        raise damaged(name, "its names of outcomes")
    if not all(0 <= run[each] <= LAST_SECOND for each in ("begun_at", "changed_at")):
        raise damaged(name, "the time of a change")
    found = read_columns(connection, name, *(columns or [*trial_table.c][:-1]))
    for expected, number in enumerate(found["id"], start=1):
        if number != expected:
            raise StorageError(f"Expected trial {expected} in {name}. Got none: it is lost.")
    trials = [RecordedTrial(*row) for row in zip(*found.values(), strict=True)]
    for trial in trials:
        if not _is_whole(trial, time is not None, len(names) or 1):
            raise damaged(name, f"trial {trial.id}")
    changes = [*found["opened"], *(each for each in found["ended"] if each is not None)]
    if max(changes, default=0) != run["changes"] or len({*changes}) < len(changes):
        raise StorageError(
            f"Expected the changes of a run, each once. Got {name}, with {run['changes']} changes, "
            f"the newest of a trial {max(changes, default=0)}: it is damaged."
        )
    return RunRows(name, run, trials)


def _is_whole(trial: RecordedTrial, has_stamps: bool, num_outcomes: int) -> bool:
    """Return whether the values of a trial go together."""
    return (
        trial.state in STATES
        and (trial.ended is not None) is (trial.state in ENDED)
        and (trial.nanoseconds is not None) is has_stamps
        and (trial.asked is not None) is (trial.round is not None)
        and all(t is None or isfinite(t) for t in (trial.t, trial.asked, trial.measured))
        and isinstance(trial.parameters, dict)
        and isinstance(trial.predicted, Mapping)
        and _are_numbers(trial.X)
        and (trial.context is None or _are_numbers(trial.context))
        and _are_numbers(trial.Y, MAX_OUTCOME)
        and len(trial.Y) == num_outcomes * (trial.state == "told")
        and (trial.Yvar == [] or (_are_numbers(trial.Yvar) and len(trial.Yvar) == len(trial.Y)))
    )


def read_columns(
    connection: Connection, name: str, *columns: Column[Any]
) -> dict[str, Sequence[Any]]:
    """Return columns of a table by name, the first of which numbers its rows, in their order.

    Raises:
        StorageError: naming a column that holds a value of another type, or what is no JSON.
    """
    rows = connection.execute(select(*columns).order_by(columns[0])).all()
    found: dict[str, Any] = {}
    for column, values in zip(columns, [*zip(*rows, strict=True)] or repeat(()), strict=False):
        is_json = isinstance(column.type, Json)
        kinds = {str if is_json else column.type.python_type}
        kinds |= {type(None)} if column.nullable else set()
        if other := {*map(type, values)} - kinds:
            where = f"the column {column.name} of {column.table.name}"
            raise damaged(name, f"{where}, which holds a {other.pop().__name__}")
        if is_json:
            what = f"{column.name} of {column.table.name.removesuffix('s')}"
            found[column.name] = _parse_all(name, what, found["id"], values)
        else:
            found[column.name] = values
    return found


def _parse_all(name: str, what: str, numbers: Sequence[int], texts: Sequence[str]) -> list[Any]:
    """Return what texts say in JSON, of rows with numbers."""
    with suppress(ValueError, RecursionError):
        # Far faster than one after another, which is to name the first that cannot be read.
        together: list[Any] = json.loads(f"[{','.join(texts)}]")
        if len(together) == len(texts):
            return together
    values = []
    for number, text in zip(numbers, texts, strict=True):
        try:
            values.append(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise damaged(name, f"{what} {number}: {error}") from error
    return values


def damaged(name: str, what: str) -> StorageError:
    """Return the error for a run that is damaged in some place."""
    return StorageError(f"Expected a whole run. Got {name}, damaged in {what}.")


def _are_numbers(values: Any, largest: float = sys.float_info.max) -> bool:
    """Return whether it is a list of finite numbers, none of which is larger."""
    return isinstance(values, list) and all(
        type(each) in (float, int) and abs(each) <= largest for each in values
    )
