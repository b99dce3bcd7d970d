"""Start a journal: a file that appears whole or not at all."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from tvbo.storage.database import (
    APPLICATION_ID,
    TABLES,
    VERSION,
    JournalError,
    connect,
    error_of,
    lock_for_writing,
)
from tvbo.storage.description import describe
from tvbo.storage.environment import Environment, current_environment
from tvbo.storage.reader import start_checksum
from tvbo.storage.record import open_trials_to_json
from tvbo.storage.recorded import Recorded
from tvbo.storage.state import State, StateError
from tvbo.storage.writer import JournalWriter, Snapshots

LONGEST_NAME = 255 - len("-journal")
"""Bytes of the name of a journal that file systems take."""


def start_journal(
    optimizer: Recorded, path: str | Path, notes: Mapping[str, str] | None = None
) -> None:
    """Record an optimizer from its present state on; called by ``optimizer.record(path)``.

    Args:
        optimizer: It may have been asked and told before: its observations are stored with it.
        path: A file that does not exist yet.
        notes: Texts to store beside the description of the optimizer, by name.

    Raises:
        JournalError: if the file exists or cannot be created, the optimizer is recorded already,
            or something in it cannot be pickled.
    """
    path = Path(path)
    if optimizer._event_sink is not None:
        raise JournalError(
            "Expected an optimizer without a journal. Got one that keeps its own: one run, one "
            "journal."
        )
    _check_is_free(path)
    blob, state = to_pickle(optimizer), state_of(optimizer)
    blobs = blob, state.to_bytes()
    environment = current_environment(state.modules)
    meta = (
        dict(notes or {})
        | describe(optimizer)
        | {
            "run": os.urandom(8).hex(),
            "tvbo": version("botorch-tvbo"),
            "open": open_trials_to_json(optimizer.open_trials),
        }
    )
    checksum = meta["checksum"] = start_checksum(blobs, meta)

    def fill(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("INSERT INTO start VALUES (?, ?, ?)", (*blobs, checksum))
        write_session(connection, 0, environment)

    _create_file(path, fill)
    with released_on_error(path) as resources:
        resources.callback((lock := lock_for_writing(path)).release)
        resources.callback((connection := connect(path)).close)
        snapshots = Snapshots(environment, state.classes, 0)
        optimizer._event_sink = JournalWriter(
            optimizer, path, connection, lock, 0, checksum, snapshots
        )


def start_filled_journal(
    optimizer: Recorded, path: str | Path, notes: Mapping[str, str], fill: Callable[[], None]
) -> None:
    """Record an optimizer in a journal that appears with all that it begins with, or not at all.

    Args:
        optimizer: It is closed afterwards: go on by ``Optimizer.open``.
        path: A file that does not exist yet.
        notes: As of :func:`start_journal`.
        fill: Attaches to the optimizer and tells it what the journal begins with.

    Raises:
        JournalError: as :func:`start_journal`.
    """
    path = Path(path)
    _check_is_free(path)
    new = path.with_name(f"{os.urandom(4).hex()}.new")
    start_journal(optimizer, new, notes)
    try:
        fill()
        optimizer.close()
        # Unlike os.rename, it overwrites no file that appeared meanwhile.
        os.link(new, path)
        _sync_folder(path.parent)
    except OSError as error:
        _check_is_free(path)
        raise JournalError(f"Expected a file that can be made. Got {path}: {error}.") from error
    finally:
        optimizer.close()
        for end in ("", "-wal", "-shm", "-lock"):
            new.with_name(new.name + end).unlink(missing_ok=True)


def state_of(optimizer: Recorded) -> State:
    """Return the state of an optimizer.

    Raises:
        JournalError: if its objects cannot be walked.
    """
    try:
        return State.of(optimizer)
    except StateError as error:
        raise JournalError(f"Expected an optimizer that can be looked at. Got {error}.") from error


def to_pickle(optimizer: Recorded) -> bytes:
    """Pickle an optimizer without its journal; tensors that share memory go on sharing it.

    Raises:
        JournalError: if something in it cannot be pickled.
    """
    try:
        file = io.BytesIO()
        torch.save(optimizer, file)
    except Exception as error:  # Any error: a class of the caller's may have a __getstate__.
        hint = ""
        if any(name in str(error) for name in ("Kernel.__init__", "register_prior")):
            hint = (
                " GPyTorch keeps such a function for each prior added by register_prior, and for "
                "those given to its periodic, cosine, linear and constant kernels: leave them out."
            )
        raise JournalError(
            "Expected an optimizer whose functions and classes stand at the top of a module, so "
            "that another process finds them: no lambda, no function within a function. "
            f"Got {type(error).__name__}: {error}.{hint}"
        ) from error
    return file.getvalue()


def write_session(connection: sqlite3.Connection, after: int, environment: Environment) -> None:
    """Note that the journal is open for writing from event ``after`` on, and with which code."""
    row = (after, json.dumps(environment), time.time())
    connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", row)


@contextmanager
def released_on_error(path: Path) -> Iterator[ExitStack]:
    """Release the resources acquired in the body, if it raises.

    Raises:
        JournalError: where the body raises an error of SQLite.
    """
    with ExitStack() as resources:
        try:
            yield resources
        except sqlite3.Error as error:
            raise error_of(f"Expected to write to {path}. Got {error}.", error) from error
        resources.pop_all()


def _check_is_free(path: Path) -> None:
    """Raise ``JournalError`` if a file is in the way, or the name is too long for those beside."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise JournalError(
            f"Expected a name of at most {LONGEST_NAME} bytes, since those of the files beside it "
            f"are longer. Got {len(os.fsencode(path.name))}."
        )
    if os.path.lexists(path):
        raise JournalError(
            f"Expected a new file to record in. Got {path}, which exists: continue it with "
            "Optimizer.open, or record in another file."
        )
    beside = path.with_name(path.name + "-wal")
    if beside.exists():
        # SQLite would merge it into the new journal.
        raise JournalError(
            f"Expected a new file to record in. Got {beside} beside it, left over from a journal "
            "that is gone: remove it, or record in another file."
        )


def _create_file(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Write a journal under another name, then link it to its own.

    Args:
        path: The journal, which does not exist.
        fill: Writes the first rows into the empty tables.

    Raises:
        JournalError: if the file exists by now, or cannot be created.
    """
    new = path.with_name(f"{os.urandom(4).hex()}.new")
    try:
        connection = sqlite3.connect(new, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for table in TABLES:
                connection.execute(table)
            fill(connection)
            connection.execute("COMMIT")
        finally:
            connection.close()
        # Unlike os.rename, it overwrites no file that appeared meanwhile.
        os.link(new, path)
        _sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        _check_is_free(path)
        raise JournalError(f"Expected a file that can be made. Got {path}: {error}.") from error
    finally:
        for left in (new, new.with_name(new.name + "-journal")):
            left.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Wait until the name of a new file is on disk, where folders can be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
