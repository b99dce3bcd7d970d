"""Start a journal: a file that appears whole or not at all."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tvbo.storage.database import (
    APPLICATION_ID,
    TABLES,
    VERSION,
    JournalError,
    connect,
    error_of,
    lock_for_writing,
)
from tvbo.storage.event import LONGEST_WORDS, Event
from tvbo.storage.reader import start_checksum
from tvbo.storage.serialize import to_bytes
from tvbo.storage.writer import INSERT, JournalWriter
from tvbo.values import shortened

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer

LONGEST_NAME = 255 - len("-journal")
"""Bytes of the name of a journal that file systems take."""


def start_journal(
    optimizer: Optimizer, path: str | Path, notes: Mapping[str, str] | None = None
) -> None:
    """Record an optimizer from its present state on; called by ``optimizer.record(path)``.

    Args:
        optimizer: It may have been in use before: its observations are stored with it.
        path: A file that does not exist yet.
        notes: Texts to store beside the description of the optimizer, by name.

    Raises:
        JournalError: if the file exists or cannot be created, the optimizer is recorded already,
            or something in it cannot be pickled.
    """
    path = Path(path)
    if isinstance(optimizer._event_sink, JournalWriter):
        raise JournalError(
            "Expected an optimizer without a journal. Got one that keeps its own: one run, one "
            "journal."
        )
    _check_is_free(path)
    state, _ = to_bytes(optimizer)
    meta = dict(notes or {}) | _describe(optimizer) | {"run": os.urandom(8).hex()}
    opened = [Event.of("attach", trial).to_row() for trial in optimizer.open_trials]
    checksum = meta["checksum"] = start_checksum(state, meta, opened)
    with _appearing(path) as new, closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for table in TABLES:
            connection.execute(table)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("INSERT INTO start VALUES (?)", (state,))
        # Before the first event, which has number 1.
        before = [(1 - i, *row, None, None) for i, row in enumerate(reversed(opened), start=1)]
        connection.executemany(INSERT, before)
        write_session(connection, 0)
        connection.execute("COMMIT")
    with released_on_error(path) as resources:
        resources.callback((lock := lock_for_writing(path)).release)
        resources.callback((connection := connect(path)).close)
        optimizer._event_sink = JournalWriter(optimizer, path, connection, lock, 0, checksum)


def start_filled_journal(
    optimizer: Optimizer, path: str | Path, notes: Mapping[str, str], fill: Callable[[], None]
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
    with _appearing(Path(path)) as new:
        start_journal(optimizer, new, notes)
        try:
            fill()
        finally:
            optimizer.close()


def write_session(connection: sqlite3.Connection, after: int) -> None:
    """Note that the journal is open for writing from event ``after`` on."""
    connection.execute("INSERT INTO sessions VALUES (?, ?)", (after, time.time()))


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


def _describe(optimizer: Optimizer) -> dict[str, str]:
    """Return what an optimizer is, as text for ``tvbo runs show``, and its units."""
    kind, space, contexts = type(optimizer), optimizer.search_space, optimizer.contexts
    low, high = space.bounds.tolist()
    words = f"{type(space).__name__}, from {shortened(low)} to {shortened(high)}"
    named = "none" if contexts is None else f"{type(contexts).__name__}, c = {contexts.dim}"
    if space.parameters is not None:
        words = shortened(space.parameters, LONGEST_WORDS)
    if contexts is not None and contexts.parameters is not None:
        named = shortened(contexts.parameters, LONGEST_WORDS)
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "search space": words,
        "contexts": named,
        "layout": str(optimizer.layout),
        "units": json.dumps({"minimize": optimizer.minimize, **optimizer.labels.to_json()}),
    }


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


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """Yield another name for a journal that the body writes and closes, then link it to its own.

    Raises:
        JournalError: if the file exists by then, or cannot be created.
    """
    _check_is_free(path)
    new = path.with_name(f"{os.urandom(4).hex()}.new")
    try:
        yield new
        # Unlike os.rename, it overwrites no file that appeared meanwhile.
        os.link(new, path)
        if os.name == "posix":  # Where folders can be opened: wait until the name is on disk.
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except (OSError, sqlite3.Error) as error:
        _check_is_free(path)
        raise JournalError(f"Expected a file that can be made. Got {path}: {error}.") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm", "-lock"):
            new.with_name(new.name + end).unlink(missing_ok=True)
