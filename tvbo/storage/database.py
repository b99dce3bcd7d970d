"""The SQLite file of a journal: its tables, its connections, the lock of its one writer."""

from __future__ import annotations

import os
import platform
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

VERSION = 4
"""Version of the tables and of the stored states: of others, no journal is read."""

APPLICATION_ID = 0x7476626F
"""SQLite's ``application_id`` of a journal: "tvbo" in ASCII."""

EVENT_COLUMNS = (
    "kind, trial_id, X, t, context, informative, information_gain, skipped, Y, Yvar, reason, fit"
)

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE events (seq INTEGER PRIMARY KEY, {EVENT_COLUMNS}, written_at REAL, checksum)",
    "CREATE TABLE sessions (after INTEGER NOT NULL, opened_at REAL)",
    # The first optimizer.
    "CREATE TABLE start (state BLOB NOT NULL)",
    "CREATE TABLE snapshot (seq INTEGER, chain TEXT, versions TEXT, state BLOB, digest TEXT)",
)

WAL_PAGES = 32
"""Pages, some 30 events, after which SQLite merges the write-ahead log into the file."""

NO_TEXT = (OSError, UnicodeError)
"""What reading or writing a lock file of another kind raises."""

SIGNATURE, LONGEST_SIGNATURE = "process ", 400
"""How the name of its holder in a lock file begins, and characters of it that are read."""

WAL_BYTES = 2**20
"""Size to which a longer write-ahead log is cut after it was merged."""


class JournalError(ValueError):
    """A journal that cannot be started, read, replayed or written any further."""


class JournalBusyError(JournalError):
    """A journal that another process holds: try again later."""


class DamagedJournalWarning(UserWarning):
    """A journal of which only a part can be read."""


def lock_for_writing(path: Path, wait: float = 0.0) -> FileLock:
    """Acquire the lock of a journal's writer, on an empty file beside the journal.

    The operating system releases it when the process ends, even by ``kill -9``. A forked process
    does not inherit it. The lock file stays: if it were removed while another process waits for
    it, two could hold a lock.

    Args:
        path: The journal.
        wait: Seconds to wait for another process that holds it.

    Returns:
        The lock, held.

    Raises:
        JournalBusyError: if this process or another holds it, saying which.
        JournalError: if the lock file cannot be opened.
    """
    if not wait >= 0:
        raise ValueError(f"Expected wait >= 0, in seconds. Got {wait}.")
    beside = os.path.realpath(path) + "-lock"
    # Any thread may close an optimizer that another one has opened.
    lock = FileLock(beside, thread_local=False)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise JournalBusyError(
            f"Expected a journal that nobody else writes. Got {path}, held by {_holder(beside)} "
            f"after a wait of {wait:g} s."
        ) from None
    except OSError as error:
        raise JournalError(
            f"Expected a folder to write in, and a file for the lock or none. Got {error}."
        ) from error
    _sign(beside)
    return lock


def _sign(lock_file: str) -> None:
    """Write into a lock file that is held who holds it, for others to read."""
    with suppress(*NO_TEXT), open(lock_file, "r+", encoding="utf-8") as file:
        if file.read(len(SIGNATURE)) in ("", SIGNATURE):  # Of no other kind of lock.
            since = datetime.now(UTC).isoformat(" ", "seconds")
            file.seek(0)
            file.truncate()
            file.write(f"{SIGNATURE}{os.getpid()} on {platform.node()} since {since}")


def _holder(lock_file: str) -> str:
    """Return who holds a lock file, as far as it is known."""
    with suppress(*NO_TEXT), open(lock_file, encoding="utf-8") as file:
        if (words := file.read(LONGEST_SIGNATURE)).startswith(SIGNATURE):
            return words
    return "another process"


def error_of(message: str, error: sqlite3.Error) -> JournalError:
    """Return the error for one of SQLite: a :class:`JournalBusyError` if others hold it."""
    is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return (JournalBusyError if is_busy else JournalError)(message)


def connect(path: Path) -> sqlite3.Connection:
    """Open a journal for writing; what is committed is on disk when the commit returns."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        # Merge what an earlier process left in the write-ahead log. A reader may keep the log from
        # being emptied; do not wait for it.
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA busy_timeout = 30000")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a journal for reading only, damaged or not; another process may go on writing it."""
    uri = path.absolute().as_uri() + "?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    try:
        # SQLite's documented way to get at what is left of a truncated file.
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:
        # Readers share memory in a file beside the journal, which a read-only folder cannot have.
        # Without unmerged pages, the file can be read as one that never changes.
        connection.close()
        beside = path.with_name(path.name + "-wal")
        has_unmerged_pages = beside.exists() and beside.stat().st_size > 0
        if os.access(path.parent, os.W_OK) or has_unmerged_pages:
            raise
        connection = sqlite3.connect(uri + "&immutable=1", uri=True, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a file for reading, and check that it is a journal.

    Raises:
        JournalError: if it is no journal of a known version, damaged or not, saying what instead.
    """
    if not os.path.isfile(path):  # Unlike Path.is_file, False also for a name that is too long.
        raise JournalError(f"Expected a journal. Got {path}, which is no file.")
    try:
        connection = connect_to_read(path)
        try:
            _check_header(path, connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        raise error_of(f"Expected a journal to read. Got {path}: {error}.", error) from error
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"Expected a journal. Got {path}, which is no journal of tvbo: {error}."
        ) from error
    return connection


def _check_header(path: Path, connection: sqlite3.Connection) -> None:
    """Check everything that SQLite says of the file.

    Raises:
        JournalError: if the file is another program's, of another version, or has other tables.
    """
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"Expected a journal. Got {path}, which is no journal of tvbo.")
    if version != VERSION:
        raise JournalError(
            f"Expected a journal with tables of version {VERSION}. Got {path}, of version "
            f"{version}: open it with the tvbo that wrote it."
        )
    # A journal with a view, a trigger or a computed column is refused before any row is read, since
    # reading one row of it may never end. The schema itself can be read without evaluating them. It
    # may be forged and long: with more entries than expected, one of those read is unexpected.
    tables = {("table", table.split()[2], table) for table in TABLES}
    expected = {*tables, ("index", "sqlite_autoindex_meta_1", None)}
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master LIMIT ?", (len(expected) + 1,)
    )
    if wrong := expected.symmetric_difference(rows):
        raise JournalError(
            "Expected the tables of a journal and nothing else. Got other ones or none of "
            f"{', '.join(sorted({f'{kind} {name}' for kind, name, _ in wrong}))}, in {path}."
        )
