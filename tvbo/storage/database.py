"""The tables of a run, and connections to the database that holds them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from tvbo.recorded_trial import RecordedTrial, State
from tvbo.terminal import visible

VERSION = 4
"""Version of the tables."""

MAX_VALUE_BYTES = 2**26
"""Bytes of a value in a file, above which it is not read."""

RETRY_SECONDS = 0.05, 2.0
"""The first and the longest pause before a database that is away is tried again."""

LOCKED = "55P03"
"""What PostgreSQL calls a row that others keep for longer than is waited."""

metadata = MetaData()


class Json(TypeDecorator[str]):
    """A value as text in JSON; text is taken for JSON, and what is read is not parsed here."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> str:
        """Return the text of a value."""
        return value if isinstance(value, str) else json.dumps(value)


run_table = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("tvbo", Text, nullable=False),
    Column("optimizer", Text, nullable=False),
    Column("settings", Json, nullable=False),
    Column("labels", Json, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("state", Json, nullable=False),
    # The number of changes, by which a process knows whether others have made some.
    Column("changes", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("begun_at", Double, nullable=False),
)

KINDS: dict[Any, Any] = {bool: Boolean, int: BigInteger, float: Double, str: Text, State: Text}
"""Types of columns; what is no single value is one in JSON."""


def _column(name: str, hint: Any) -> Column[Any]:
    """Return the column of a field of a trial."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind = KINDS.get(kinds[0], Json)
    return Column(name, kind, nullable=NoneType in kinds and kind is not Json, unique=name == "key")


_, *FIELDS = get_type_hints(RecordedTrial).items()

trial_table = Table(
    "trials",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *(_column(name, hint) for name, hint in FIELDS),
)


NO_PLAIN_TABLE, WORD = re.compile(r'[^\w\s(),"]'), re.compile(r"\w+")
"""What the statement that makes a table has not, and what its words are."""

TYPES = "INTEGER BIGINT TEXT DOUBLE PRECISION BOOLEAN"
WORDS = {*f"CREATE TABLE NOT NULL PRIMARY KEY UNIQUE {TYPES}".split()}
WORDS |= {table.name.upper() for table in metadata.tables.values()}
WORDS |= {column.name.upper() for table in metadata.tables.values() for column in table.c}
"""Words of these statements; others would have SQLite compute something."""


class StorageError(ValueError):
    """A run that cannot be begun, read, or taken further; its message is one printable line."""

    def __init__(self, message: str):
        # It may cite a file that somebody has forged, or what a server says.
        super().__init__(visible(" ".join(message.split())))


class RunBusyError(StorageError):
    """A run that another process is changing: try again later."""


class StorageUnavailableError(StorageError):
    """A database that is away: try again later."""


class Database:
    """The database of one run.

    A connection is opened for each transaction, so that a process may be forked, and none is held
    while a run waits for outcomes.

    Args:
        url: A path, or the URL of a database.
        wait: Seconds to wait where others change the run, or the database is away.

    Attributes:
        path: The file, without symbolic links; None of a server.
        url: What another connection takes to reach it.
        name: What it is called in messages, without a password.

    Raises:
        StorageError: if the URL is none, its driver is not installed, or the file has a second
            name, under which another process could change it at the same time.
    """

    def __init__(self, url: str | Path, wait: float = 60.0):
        if not wait >= 0:
            raise ValueError(f"Expected wait >= 0, in seconds. Got {wait}.")
        self.wait = wait
        self.path: Path | None = None
        try:
            is_url = isinstance(url, str) and "://" in url
            made = make_url(str(url)) if is_url else URL.create("sqlite", database=str(url))
            options: dict[str, Any] = {}
            if made.get_backend_name() == "sqlite":
                if made.database in (None, "", ":memory:"):
                    raise ArgumentError("a database in memory, which one connection sees")
                self.path = Path(os.path.realpath(str(made.database)))
                made, options["timeout"] = made.set(database=str(self.path)), wait
            self.engine = create_engine(made, poolclass=NullPool, connect_args=options)
        except (ArgumentError, ImportError, ValueError) as error:
            raise StorageError(f"Expected a file or the URL of a database. Got {error}.") from error
        self.url = str(self.path or made.render_as_string(hide_password=False))
        self.name = str(self.path or made.render_as_string())
        if self.path is not None:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def transaction(self, writes: bool = False) -> Iterator[Connection]:
        """Yield a connection within a transaction, which is committed if the body does not raise.

        Args:
            writes: Whether others wait until it has ended.

        Raises:
            RunBusyError: if others write for longer than is waited.
            StorageUnavailableError: if the database is away for longer than that.
            StorageError: if it cannot be read or written.
        """
        try:
            connection = self._connect()
            options: dict[str, Any] = {"writes": writes}
            if self.path is None and not writes:
                # Its queries see one state of the run, as those of a file do.
                options["isolation_level"] = "REPEATABLE READ"
            with connection, connection.execution_options(**options).begin():
                if self.path is None and writes:
                    # That of SQLite is given where it is connected; 0 would be for ever.
                    milliseconds = max(1, round(1000 * self.wait))
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
                yield connection
        except DBAPIError as error:
            raise self._error(error) from error
        except UnicodeDecodeError as error:
            # By sqlite3, where what SQLite says cites what is no text.
            raise StorageError(f"Expected a whole run. Got {self.name}: {error}.") from error

    def _connect(self) -> Connection:
        """Return a connection; a database that is away is tried again and again."""
        if self.path is not None:
            self._check_file(self.path)
        deadline, pause = time.monotonic() + self.wait, RETRY_SECONDS[0]
        while True:
            try:
                return self.engine.connect()
            except OperationalError:
                if self.path is not None or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _check_file(self, path: Path) -> None:
        try:
            found = path.stat()
        except OSError as error:
            raise StorageError(f"Expected a run. Got {path}: {error.strerror}.") from error
        if not path.is_file():
            raise StorageError(f"Expected a run. Got {path}, which is no file.")
        if found.st_nlink > 1:
            self._drop_first_name(path)
        if path.stat().st_nlink > 1:
            raise StorageError(
                f"Expected a file with one name, since SQLite keeps another beside it. Got {path}, "
                f"which has {found.st_nlink}: copy it with tvbo backup instead."
            )

    @staticmethod
    def _drop_first_name(path: Path) -> None:
        """Remove the name under which a file was made, which a process that was killed has left."""
        for other in path.parent.glob(f"{escape(path.name)}.*.new"):
            with suppress(OSError):
                if other.samefile(path):
                    other.unlink()

    def _error(self, error: DBAPIError) -> StorageError:
        """Return what an error of the database means."""
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY or getattr(error.orig, "sqlstate", "") == LOCKED:
            return RunBusyError(
                f"Expected {self.name} free within {self.wait:g} s. Got a run that another process "
                f"is changing{self._newest_change()}."
            )
        if self.path is None and (
            error.connection_invalidated or isinstance(error, OperationalError)
        ):
            return StorageUnavailableError(
                f"Expected {self.name} within {self.wait:g} s. Got {error.orig}."
            )
        what = "read" if isinstance(error, DatabaseError) and not code else "read or written"
        return StorageError(f"Expected a run that can be {what}. Got {self.name}: {error.orig}.")

    def _newest_change(self) -> str:
        """Return who has changed the run before, which is often who does now."""
        with suppress(Exception), self.engine.connect() as connection:
            query = select(run_table.c.changed_by)
            return f"; the newest change is by {connection.execute(query).scalar_one()}"
        return ""

    def check(self, connection: Connection) -> None:
        """Check that a database holds a run, whole and of this version, and nothing that runs code.

        Raises:
            StorageError: if it does not, saying what it holds instead.
        """
        names = set(inspect(connection).get_table_names())
        if self.path is not None:
            self._check_schema(connection)
        if missing := metadata.tables.keys() - names:
            raise StorageError(
                f"Expected a run. Got {self.name}, which has no table {min(missing)}."
            )
        versions = connection.execute(select(run_table.c.version)).scalars().all()
        if versions != [VERSION]:
            raise StorageError(
                f"Expected a run with tables of version {VERSION}. Got {self.name}, of version "
                f"{', '.join(map(str, versions)) or 'none'}: open it with the tvbo that wrote it."
            )
        if self.path is not None:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if found != "ok":
                raise StorageError(f"Expected a whole run. Got {self.name}, damaged: {found}.")

    def _check_schema(self, connection: Connection) -> None:
        """Raise for a view, a trigger, a virtual or a computed table, before a row is read."""
        limit = 4 * len(metadata.tables)
        rows = connection.exec_driver_sql(
            "SELECT type, name, sql FROM sqlite_master LIMIT ?", (limit + 1,)
        ).all()
        for kind, name, sql in rows:
            # SQLite makes an index of its own where values differ from one another.
            is_plain = kind == "index" and sql is None
            if kind == "table" and isinstance(sql, str) and not NO_PLAIN_TABLE.search(sql):
                is_plain = {*WORD.findall(sql.upper())} <= WORDS
            if not is_plain or len(rows) > limit:
                raise StorageError(
                    f"Expected the tables of a run of version {VERSION} and nothing else. Got "
                    f"{kind} {name!r:.60} in {self.name}: a run of another version is opened by "
                    "the tvbo that wrote it."
                )


def make_tables(connection: Connection, name: str) -> None:
    """Make the tables of a run in an empty database.

    Raises:
        StorageError: if it is not empty.
    """
    if names := inspect(connection).get_table_names():
        raise StorageError(
            f"Expected an empty database to record in. Got {name}, with a table {names[0]}: "
            "continue a run with Optimizer.open."
        )
    metadata.create_all(connection)


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Set what a file of SQLite is opened with: what is committed is on disk."""
    # Transactions are begun below, as SQLAlchemy's page on SQLite has it.
    connection.isolation_level = None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    for setting in ("synchronous = EXTRA", "trusted_schema = OFF", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
