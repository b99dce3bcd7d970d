"""The rows of a run as they are, read without a model."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from sqlalchemy import Column, Connection, select

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

MAX_OUTCOME = 1e30
"""Largest outcome that a trial may have, as of ``Optimizer.tell``."""

STATES = ("told", "open", "failed", "expired", "skipped")
"""States of a trial."""

ENDED = frozenset(["told", "failed", "expired"])
"""States in which a trial has ended."""

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
        trials: Its trials, oldest first, by column; ``parameters`` are values by name.
        outcomes: Outcomes and their variances by the number of their trial.
        asks: What was recorded of each ask, by the number of its trial.
    """

    name: str
    run: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]]
    outcomes: Mapping[int, tuple[Sequence[float], Sequence[float | None]]]
    asks: Mapping[int, Mapping[str, Any]]

    @cached_property
    def labels(self) -> Mapping[str, Any]:
        """Names of the outcomes and the unit of time."""
        labels: Mapping[str, Any] = parse_json(self.run["labels"])
        return labels

    @cached_property
    def predictions(self) -> Mapping[int, Mapping[str, Any]]:
        """What was predicted at the asks of a rule that has a model, by the number of the trial.

        Raises:
            StorageError: if one is damaged.
        """
        found = {}
        for number, ask in self.asks.items():
            is_good = isinstance(ask, dict)
            if is_good and "mean" in ask:
                found[number] = ask
                is_good = all(isinstance(ask.get(n), kind) for n, kind in PREDICTED.items())
                lengths = 0, len(self.trials[number - 1]["X"])
                is_good = is_good and _are_numbers(ask["best"]) and len(ask["best"]) in lengths
            if not is_good:
                raise damaged(self.name, f"the ask of trial {number}")
        return found

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
            return float(trial["t"] if trial["measured"] is None else trial["measured"])
        stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=self._nanoseconds_of(trial) / 1e3
        )
        zone = scale["zone"]
        return (
            stamp.replace(tzinfo=None) if zone is None else stamp.astimezone(ZoneInfo(zone))
        ).isoformat()

    def _nanoseconds_of(self, trial: Mapping[str, Any]) -> int:
        """Return the time of a trial, that of its outcome if it has one, since 1970."""
        if trial["measured"] is None:
            return int(trial["nanoseconds"])
        from tvbo.spaces.labels import TimeScale

        return int(TimeScale(**self.labels["time"]).to_stamp(trial["measured"]).value)

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
        if (scale := self.labels["time"]) is not None:
            # Of a zone with summer time, texts would have several offsets.
            stamps = pd.to_datetime([*map(self._nanoseconds_of, self.trials)], utc=True)
            zone = scale["zone"]
            frame["t"] = stamps.tz_localize(None) if zone is None else stamps.tz_convert(zone)
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
    name = database.name
    with without_collector(), database.transaction() as connection:
        database.check(connection)
        run = read_one(connection, name)
        trials = read_trials(connection, name, run, *trial_table.c)
        outcomes = read_outcomes(connection, name, run, trials)
        asks = columns_of(connection, name, ask_table.c.trial, ask_table.c.predicted)
    predicted = parse_all(name, "the ask of trial", *asks.values())
    rows = [dict(zip(trials, row, strict=True)) for row in zip(*trials.values(), strict=True)]
    return RunRows(name, run, rows, outcomes, dict(zip(asks["trial"], predicted, strict=True)))


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


def read_one(connection: Connection, name: str) -> dict[str, Any]:
    """Return the row of a run by column.

    Raises:
        StorageError: if its labels or times are damaged.
    """
    run = {
        column: values[0] for column, values in columns_of(connection, name, *run_table.c).items()
    }
    labels = parsed(name, "its labels", run["labels"])
    try:
        names, time = labels["outcomes"], labels["time"]
        are_texts = all(isinstance(each, str) for each in names)
        if time is not None and time["zone"] is not None:
            ZoneInfo(time["zone"])
    except (LookupError, OSError, TypeError, ValueError) as error:
        raise damaged(name, f"its labels: {error!r:.200}") from error
    if not are_texts:
        raise damaged(name, "its names of outcomes")
    if not all(0 <= run[each] <= LAST_SECOND for each in ("begun_at", "changed_at")):
        raise damaged(name, "the time of a change")
    return run


def read_trials(
    connection: Connection, name: str, run: Mapping[str, Any], *columns: Column[Any]
) -> dict[str, list[Any]]:
    """Return columns of the trials of a run, oldest first, those in JSON as what they say.

    Args:
        connection: A transaction.
        name: What the run is called.
        run: The row of the run.
        columns: The columns, among them the number, time, state, beginning and end.

    Raises:
        StorageError: naming the first trial that is damaged or lost.
    """
    trials = columns_of(connection, name, *columns)
    numbers = trials["id"]
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            raise StorageError(f"Expected trial {expected} in {name}. Got none: it is lost.")
    has_stamps = parse_json(run["labels"])["time"] is not None
    checked = ("id", "state", "ended", "nanoseconds", "t", "asked", "measured")
    for number, state, ended, stamp, *times in zip(
        *(trials[each] for each in checked), strict=True
    ):
        is_good = state in STATES and (ended is not None) is (state in ENDED)
        are_finite = all(each is None or isfinite(each) for each in times)
        if not is_good or (stamp is not None) is not has_stamps or not are_finite:
            raise damaged(name, f"trial {number}")
    changes = [*trials["opened"], *(each for each in trials["ended"] if each is not None)]
    if max(changes, default=0) != run["changes"] or len({*changes}) < len(changes):
        raise StorageError(
            f"Expected the changes of a run, each once. Got {name}, with {run['changes']} changes, "
            f"the newest of a trial {max(changes, default=0)}: it is damaged."
        )
    for column in {"parameters", "X", "context"} & trials.keys():
        found = [(i, text) for i, text in enumerate(trials[column]) if text is not None]
        said = parse_all(
            name, f"{column} of trial", [i + 1 for i, _ in found], [t for _, t in found]
        )
        for (i, _), each in zip(found, said, strict=True):
            good = isinstance(each, dict) if column == "parameters" else _are_numbers(each)
            if not good:
                raise damaged(name, f"{column} of trial {i + 1}")
            trials[column][i] = each
    return trials


def read_outcomes(
    connection: Connection, name: str, run: Mapping[str, Any], trials: Mapping[str, list[Any]]
) -> dict[int, tuple[Sequence[float], Sequence[float | None]]]:
    """Return outcomes and their variances by the number of their trial.

    Raises:
        StorageError: naming a trial that should have others.
    """
    numbers, places, values, variances = columns_of(connection, name, *outcome_table.c).values()
    size = len(parse_json(run["labels"])["outcomes"]) or 1
    states = zip(trials["id"], trials["state"], strict=True)
    told = [number for number, state in states if state == "told"]
    given = [*zip(numbers, places, strict=True)]
    expected = [(number, place) for number in told for place in range(size)]
    if given != expected:
        raise damaged(name, f"the outcomes of trial {min({*given} ^ {*expected})[0]}")
    for number, value, variance in zip(numbers, values, variances, strict=True):
        if not abs(value) <= MAX_OUTCOME or not (variance is None or isfinite(variance)):
            raise damaged(name, f"the outcomes of trial {number}")
    Y, Yvar = (zip(*[iter(column)] * size, strict=True) for column in (values, variances))
    return dict(zip(told, zip(Y, Yvar, strict=True), strict=True))


def columns_of(connection: Connection, name: str, *columns: Column[Any]) -> dict[str, list[Any]]:
    """Return columns of a table, in the order of its primary key.

    Raises:
        StorageError: naming a column that holds a value of another type.
    """
    order = columns[0].table.primary_key
    rows = connection.execute(select(*columns).order_by(*order)).all()
    values = [list(each) for each in zip(*rows, strict=True)] or [[] for _ in columns]
    found = dict(zip([column.name for column in columns], values, strict=True))
    for column in columns:
        kinds = {column.type.python_type, type(None) if column.nullable else object}
        if other := {*map(type, found[column.name])} - kinds:
            place = f"the column {column.name} of {column.table.name}"
            raise damaged(name, f"{place}, which holds a {other.pop().__name__}")
    return found


def damaged(name: str, what: str) -> StorageError:
    """Return the error for a run that is damaged in some place."""
    return StorageError(f"Expected a whole run. Got {name}, damaged in {what}.")


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
        raise damaged(name, f"{what}: {error}") from error


def parse_all(name: str, what: str, numbers: Sequence[int], texts: Sequence[str]) -> list[Any]:
    """Return what texts say in JSON, each of a trial.

    Raises:
        StorageError: naming the first that cannot be read.
    """
    try:
        together: list[Any] = parse_json(f"[{','.join(texts)}]")
        if len(together) == len(texts):
            return together
    except ValueError:
        pass
    return [parsed(name, f"{what} {each}", text) for each, text in zip(numbers, texts, strict=True)]


def _are_numbers(values: Any) -> bool:
    """Return whether it is a list of finite numbers."""
    return isinstance(values, list) and all(
        type(each) in (float, int) and isfinite(each) for each in values
    )
