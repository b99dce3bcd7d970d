"""Record an optimizer: begin a run, take one further, and share it with other processes."""

from __future__ import annotations

import getpass
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, insert, select, update

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.optimizers.event import Event
from tvbo.recorded_trial import COPIED
from tvbo.serialize import SerializationError, option_from_data, option_to_data
from tvbo.spaces.labels import Instant
from tvbo.storage.database import (
    VERSION,
    Database,
    StorageError,
    StorageUnavailableError,
    make_tables,
    run_table,
    trial_table,
)
from tvbo.storage.rows import RunRows, read_rows, without_collector
from tvbo.trial import Trial
from tvbo.values import shortened

T = TypeVar("T", bound=Optimizer)

TVBO_VERSION = version("botorch-tvbo")
"""The version that begins runs."""

SPACES = {
    "bounds": "search_space",
    "choices": "search_space",
    "context_bounds": "contexts",
    "contexts": "contexts",
}
"""Options that are read into an attribute of the optimizer, from which they are stored."""

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}
"""States of trials after the events that end them."""


class DatabaseRecord:
    """The record of an optimizer in a database.

    A call that changes the optimizer is a transaction, in which nobody else changes the run: what
    others have changed is taken in, the change is made in memory, and is written as a whole. If it
    cannot be, the optimizer is restored from the rows before the next call.

    Args:
        database: The database.
        blank: The optimizer without trials.
        changes: Number of changes that the optimizer has taken in.
        state: Its state as it was written.
    """

    def __init__(self, database: Database, blank: Optimizer, changes: int, state: str):
        self.database = database
        self._blank = blank
        # None where the optimizer may differ from the rows.
        self._changes: int | None = changes
        self._state = state
        self._is_closed = False

    def refresh(self, optimizer: Optimizer) -> None:
        """Have the optimizer take in what others have changed."""
        if not self._is_closed:
            with self.database.transaction() as connection:
                self._take_in(connection, optimizer)

    @contextmanager
    def transaction(self, optimizer: Optimizer, events: Sequence[Event]) -> Iterator[None]:
        """Have the body make a change, and write its events.

        Raises:
            StorageError: if the record is closed, or cannot be read or written.
        """
        if self._is_closed:
            raise StorageError(
                "Expected an optimizer whose record is open. Got one that was closed: go on with "
                f"Optimizer.open({self.database.name!r})."
            )
        changes, changed_at = 0, time.time()
        try:
            with self.database.transaction(writes=True) as connection:
                # Nobody else writes from here on, a server's other sessions included.
                connection.execute(select(run_table.c.id).with_for_update())
                changes = self._take_in(connection, optimizer)
                self._changes = None
                yield
                if events:
                    self._write(connection, optimizer, events, changes, changed_at)
                changes += len(events)
        except StorageUnavailableError:
            # The server may have gone away after the commit.
            if not self._is_committed(changes, changed_at):
                raise
        self._changes = changes

    def close(self) -> None:
        """Refuse further changes."""
        self._is_closed = True

    def _take_in(self, connection: Connection, optimizer: Optimizer) -> int:
        """Restore the optimizer if the rows are not as it knows them; return their changes."""
        changes: int = connection.execute(select(run_table.c.changes)).scalar_one()
        if changes != self._changes:
            rows = read_rows(connection, self.database.name)
            restore(rows, optimizer, self._blank)
            self._changes, self._state = changes, json.dumps(rows.run["state"])
        return changes

    def _write(
        self,
        connection: Connection,
        optimizer: Optimizer,
        events: Sequence[Event],
        changes: int,
        changed_at: float,
    ) -> None:
        who = f"{_user()} on {platform.node()}, process {os.getpid()}"
        opened, ended = [], []
        for number, event in enumerate(events, start=changes + 1):
            if (trial := event.trial) is None:
                continue
            if (state := ENDINGS.get(event.kind)) is None:
                opening = {"opened": number, "opened_at": changed_at, "opened_by": who}
                opened.append(_row_of(trial, event) | opening)
                continue
            ending = {"number": trial.id, "state": state, "reason": event.reason}
            ending |= {"ended": number, "ended_at": changed_at, "measured": event.measured}
            ended.append({**ending, "Y": event.Y, "Yvar": event.Yvar})
        if opened:
            connection.execute(insert(trial_table), opened)
        if ended:
            is_its = trial_table.c.id == bindparam("number")
            connection.execute(update(trial_table).where(is_its), ended)
        changed: dict[str, Any] = {"changes": changes + len(events), "changed_by": who}
        changed |= {"changed_at": changed_at}
        if (state := json.dumps(optimizer.state_dict())) != self._state:
            changed["state"] = self._state = state
        connection.execute(update(run_table).values(changed))

    def _is_committed(self, changes: int, changed_at: float) -> bool:
        """Return whether the record has a change, by its number and time."""
        c = trial_table.c
        is_known = ((c.opened == changes) & (c.opened_at == changed_at)) | (
            (c.ended == changes) & (c.ended_at == changed_at)
        )
        with suppress(StorageError), self.database.transaction() as connection:
            return connection.execute(select(c.id).where(is_known)).scalar() is not None
        return False


def create(optimizer: Optimizer, url: str | Path) -> DatabaseRecord:
    """Begin a run of an optimizer without trials.

    A file appears whole or not at all.

    Args:
        optimizer: The optimizer.
        url: A file that does not exist yet, or the URL of an empty database.

    Raises:
        StorageError: if the file exists or cannot be made, the database is not empty, or the
            optimizer has trials.
    """
    if optimizer.num_trials > 0:
        raise StorageError(
            f"Expected an optimizer without trials: record it before the first ask. Got "
            f"{optimizer!r}."
        )
    state = json.dumps(optimizer.state_dict())
    run = {
        "id": 1,
        "version": VERSION,
        "tvbo": TVBO_VERSION,
        "optimizer": _name_of(optimizer),
        "settings": settings_of(optimizer),
        "labels": {"minimize": optimizer.minimize, **optimizer.labels.to_json()},
        "seed": optimizer.seed,
        "state": state,
        "changes": 0,
        "changed_by": _user(),
        "changed_at": time.time(),
        "begun_at": time.time(),
    }
    database = Database(url)
    path = database.path
    with nullcontext(url) if path is None else appearing(path) as target:
        if path is not None:
            Path(target).touch(exist_ok=False)
        with Database(target).transaction(writes=True) as connection:
            make_tables(connection, database.name)
            connection.execute(insert(run_table), [run])
    return DatabaseRecord(database, deepcopy(optimizer), 0, state)


def open_run(
    url: str | Path, kind: type[T], like: Optimizer | None, wait: float
) -> tuple[T, DatabaseRecord]:
    """Return the optimizer of a run and its record, as ``Optimizer.open`` describes it."""
    database = Database(url, wait)
    with database.transaction() as connection:
        database.check(connection)
        rows = read_rows(connection, database.name)
        blank = _blank_of(rows, like)
        if not isinstance(blank, kind):
            raise StorageError(
                f"Expected a run of a {kind.__name__}. Got {database.name}, of a "
                f"{type(blank).__name__}: open it by Optimizer.open."
            )
        optimizer = deepcopy(blank)
    restore(rows, optimizer, blank)
    state = json.dumps(rows.run["state"])
    return optimizer, DatabaseRecord(database, blank, rows.run["changes"], state)


@without_collector()
def restore(rows: RunRows, optimizer: Optimizer, blank: Optimizer) -> None:
    """Have an optimizer take over the rows of a run.

    Raises:
        StorageError: if a row is damaged, or the optimizer cannot take it over.
    """
    contexts = optimizer.contexts
    expected = optimizer.search_space.dim, None if contexts is None else contexts.dim
    trials = rows.trials
    try:
        for each in trials:
            if (len(each.X), None if each.context is None else len(each.context)) != expected:
                raise ValueError(f"an action and a context of other sizes in trial {each.id}")
        if optimizer.time_scale is not None:
            trials = [each._replace(t=Instant(each.t, each.nanoseconds or 0)) for each in trials]
        optimizer.restore(deepcopy(blank), trials, rows.run["state"])
    except Exception as error:  # Any error: the rows may be forged.
        raise StorageError(
            f"Expected a run that {type(optimizer).__name__} can take over. Got {rows.name}: "
            f"{type(error).__name__}: {shortened(error)}"
        ) from error


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return what an optimizer was built from, as types of JSON."""
    if optimizer.settings is None:
        return {"recipe": None}
    recipe, given = optimizer.settings
    options: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None and name not in ("generator", "contexts_outside"):
            held = getattr(optimizer, SPACES[name]) if name in SPACES else value
            try:
                options[name] = option_to_data(held)
            except SerializationError as error:
                # It cannot be made again from the data alone.
                options[name] = {"class": "foreign", "value": shortened(error)}
    return {"recipe": recipe, "options": options}


def _blank_of(rows: RunRows, like: Optimizer | None) -> Optimizer:
    """Return the optimizer of a run, without trials.

    Raises:
        StorageError: if it cannot be built, or the one that is given has other settings.
    """
    run, settings = rows.run, rows.run["settings"]
    if like is not None:
        given = {"optimizer": _name_of(like), "seed": like.seed, "settings": settings_of(like)}
        recorded = {"optimizer": run["optimizer"], "seed": run["seed"], "settings": settings}
        # As both are after a way through JSON.
        if (other := _difference(recorded, json.loads(json.dumps(given)))) is not None:
            place, one, two = other
            raise StorageError(
                f"Expected a run of this problem and these settings. Got {rows.name}, which "
                f"differs in {place}: it has {shortened(repr(one))}, where "
                f"{shortened(repr(two))} was given."
            )
        if like.num_trials > 0:
            raise StorageError(f"Expected like= to have no trials. Got {like!r}.")
        return deepcopy(like)
    try:
        recipe = settings["recipe"]
        if recipe is None:
            raise SerializationError(f"it was built by hand, a {run['optimizer']}")
        if recipe not in recipes.__all__:
            raise SerializationError(f"there is no recipe {recipe!r:.60}")
        options = {key: option_from_data(each) for key, each in settings["options"].items()}
        return getattr(recipes, recipe)(**options, generator=run["seed"])
    except Exception as error:  # Any error: the settings may be forged.
        raise StorageError(
            f"Expected a run whose settings are data. Got {rows.name}: {shortened(error)}. Give an "
            "optimizer with the run's settings, like=."
        ) from error


def _difference(one: Any, two: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Return where two values of JSON differ first, and what each has there."""
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        one, two = dict(enumerate(one)), dict(enumerate(two))
    if isinstance(one, dict) and isinstance(two, dict):
        for key in {**one, **two}:
            found = _difference(one.get(key), two.get(key), f"{place}.{key}".removeprefix("."))
            if found is not None:
                return found
        return None
    return None if one == two else (place, one, two)


def _row_of(trial: Trial, event: Event) -> dict[str, Any]:
    """Return the row of a trial that is opened."""
    values = trial.to_row()
    named = {key: each for key, each in values.items() if key not in ("trial", "t")}
    context = trial.context
    return {name: getattr(trial, name) for name in COPIED} | {
        "round": event.round or None,
        "t": float(trial.t),
        "nanoseconds": getattr(trial.t, "nanoseconds", None),
        "measured": None,
        "parameters": named,
        "X": trial.X.flatten().tolist(),
        "context": None if context is None else context.flatten().tolist(),
        "state": "skipped" if trial.skipped else "open",
        "reason": event.reason if trial.skipped else "",
        "rejection": event.reason,
        "Y": [],
        "Yvar": [],
        "dropped": event.dropped if any(event.dropped) else [],
        "predicted": event.predicted,
    }


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield another name for a file that the body makes, then rename it to its own.

    Raises:
        StorageError: if the file exists, or cannot be made.
    """
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    try:
        _check_is_free(path)
        yield new
        # Unlike os.rename, it overwrites no file that appeared meanwhile.
        os.link(new, path)
        new.unlink(missing_ok=True)
        if os.name == "posix":  # Where folders can be opened: wait until the name is on disk.
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        _check_is_free(path)
        raise StorageError(f"Expected a file that can be made. Got {path}: {error}.") from error
    finally:
        for end in ("", "-journal"):
            new.with_name(new.name + end).unlink(missing_ok=True)


def _check_is_free(path: Path) -> None:
    """Raise ``StorageError`` if a file is in the way."""
    # SQLite would merge what another file of this name has left.
    for each in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal"))):
        if os.path.lexists(each):
            raise StorageError(
                f"Expected a new file to record in. Got {path}, beside which {each} exists: "
                "continue a run with Optimizer.open, or record in another file."
            )


def _name_of(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "somebody"
