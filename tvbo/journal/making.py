"""A new journal appears whole or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tvbo.journal.errors import JournalError
from tvbo.journal.schema import APPLICATION_ID, TABLES, VERSION


def check_is_free(path: Path) -> None:
    """Raise if a journal cannot be made there.

    Raises:
        JournalError: if there is such a file, or what a journal of that name left beside it.
    """
    if os.path.lexists(path):
        raise JournalError(
            f"Expected a new file to record in. Got {path}, which exists: continue it with "
            "Optimizer.open, or record in another file."
        )
    beside = path.with_name(path.name + "-wal")
    if beside.exists():
        # SQLite would take it for a part of the new one.
        raise JournalError(
            f"Expected a new file to record in. Got {beside} beside it, left over from a journal "
            "that is gone: remove it, or record in another file."
        )


def make(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Make the file of a journal: written under another name, and then given its own.

    Args:
        path: The file, which does not exist.
        fill: Writes what it begins with into the empty tables.

    Raises:
        JournalError: if the file exists by now, or cannot be made.
    """
    built = path.with_name(f"{path.name}-{os.urandom(4).hex()}.new")
    try:
        _write(built, fill)
        # Unlike a renaming, it overwrites nothing.
        os.link(built, path)
        _sync(path.parent)
    except (OSError, sqlite3.Error) as error:
        # Somebody may have made one meanwhile.
        check_is_free(path)
        raise JournalError(f"Expected a file that can be made. Got {path}: {error}.") from error
    finally:
        for left in (built, built.with_name(built.name + "-journal")):
            left.unlink(missing_ok=True)


def _write(path: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
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


def _sync(folder: Path) -> None:
    """The name of a new file is on disk too, where folders can be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
