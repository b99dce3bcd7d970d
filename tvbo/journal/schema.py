"""The file: tables, how it is told from other files, how it is opened."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

VERSION = 3
"""Of the tables below and the classes named in them. Older journals can be read, but not opened."""

APPLICATION_ID = 0x7476626F
"""What SQLite files say of their program: "tvbo" in ASCII."""

EVENT_COLUMNS = (
    "kind, trial_id, X, t, context, informative, information_gain, skipped, Y, Yvar, reason, fit, "
    "generator"
)

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE events (seq INTEGER PRIMARY KEY, {EVENT_COLUMNS}, written_at REAL, checksum)",
    "CREATE TABLE sessions (after INTEGER NOT NULL, environment TEXT NOT NULL, opened_at REAL)",
    # As a pickle, for whoever trusts the file, and as plain data.
    "CREATE TABLE start (optimizer BLOB NOT NULL, state BLOB NOT NULL, checksum TEXT NOT NULL)",
    "CREATE TABLE snapshot (seq INTEGER, chain TEXT, environment TEXT, state BLOB, digest TEXT)",
)

TABLES_BEFORE = {
    1: (
        *TABLES[:3],
        "CREATE TABLE start (optimizer BLOB NOT NULL, checksum TEXT NOT NULL)",
        "CREATE TABLE snapshot "
        "(seq INTEGER, chain TEXT, environment TEXT, optimizer BLOB, digest TEXT)",
    ),
    2: TABLES,
}
"""Those of older versions."""


PAGES_BESIDE = 32
"""Pages that wait in the write-ahead log, some 30 events, before they are merged into the file."""

BYTES_BESIDE = 2**20
"""A longer log is cut to this once it was merged."""


def connect(path: Path) -> sqlite3.Connection:
    """Open for writing: what is committed is on disk when the commit returns."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {PAGES_BESIDE}")
        connection.execute(f"PRAGMA journal_size_limit = {BYTES_BESIDE}")
        # What lies beside the file is merged into it, and need not be read again. A reader may keep
        # the log from being emptied; it is not waited for.
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA busy_timeout = 30000")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path, forgiving: bool = False) -> sqlite3.Connection:
    """Open for reading only; a process that writes goes on writing.

    Args:
        path: The file.
        forgiving: Read even a file that has lost its end.
    """
    uri = path.absolute().as_uri() + "?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    if forgiving:
        # Otherwise SQLite refuses a file that is shorter than its header says.
        connection.execute("PRAGMA writable_schema = ON")
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:
        # In a folder that cannot be written, the usual way of sharing the file is closed.
        connection.close()
        if os.access(path.parent, os.W_OK) or _has_unmerged_pages(path):
            raise
        connection = sqlite3.connect(uri + "&immutable=1", uri=True, isolation_level=None)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def strange_table(connection: sqlite3.Connection, version: int) -> str | None:
    """What the schema has that a journal's has not, in words; None for that of a journal.

    Nothing but these tables is read, since a view, a trigger or a computed column could keep
    whoever reads it busy for ever. Looking at the schema itself evaluates none of them.
    """
    expected = set(TABLES_BEFORE.get(version, TABLES))
    found = set()
    # More rows than expected need not be read: one of them is strange.
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master LIMIT ?", (len(expected) + 2,)
    )
    for kind, name, sql in rows:
        if (kind, name, sql) == ("index", "sqlite_autoindex_meta_1", None):
            continue
        if kind != "table" or sql not in expected:
            return f"{kind} {name}"
        found.add(sql)
    if missing := expected - found:
        return f"no {min(missing).split(' (')[0].removeprefix('CREATE ').lower()}"
    return None


def _has_unmerged_pages(path: Path) -> bool:
    beside = path.with_name(path.name + "-wal")
    return beside.exists() and beside.stat().st_size > 0
