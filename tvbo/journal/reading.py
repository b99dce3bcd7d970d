"""A journal as it stands on disk: nothing is unpickled, nothing is changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from tvbo.journal.environment import Environment
from tvbo.journal.errors import JournalError
from tvbo.journal.record import Record, chained
from tvbo.journal.schema import (
    APPLICATION_ID,
    EVENT_COLUMNS,
    TABLES_BEFORE,
    VERSION,
    connect_to_read,
    strange_table,
)
from tvbo.journal.snapshot import digest_of
from tvbo.journal.wal import damage_of_wal

END_OF_DATES = 253_402_300_800
"""Unix time of the year 10,000."""


LONGEST_WORDS = 2_000
"""Letters of a description of an optimizer."""


@dataclass(frozen=True)
class Session:
    """A time during which a journal was open for writing.

    Args:
        after: Number of events before it.
        environment: What the choices made in it rest on.
        opened_at: When, in seconds of Unix time.
    """

    after: int
    environment: Environment
    opened_at: float


@dataclass(frozen=True)
class Snapshot:
    """A stored state, and what it was after."""

    seq: int
    chain: str
    environment: Environment
    state: bytes


class JournalReader:
    """Reads a journal up to its last good record; a context manager.

    Args:
        path: The journal.

    Attributes:
        version: That of the tables.
        meta: What was written down of the optimizer, by name.
        sessions: When it was open for writing, oldest first.
        damage: What is wrong with the file, in words; None for a whole one.

    Raises:
        JournalError: if there is no such file, it is no journal, of another version of the tables,
            or damaged so that nothing can be read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.damage: str | None = None
        self._connection, self.version, damage = open_to_read(self.path)
        if damage is not None:
            self._damaged(damage)
        try:
            self._look_for_damage()
            # What is written meanwhile is not seen.
            self._connection.execute("BEGIN")
            self.meta = self._read_meta()
            self._start, self._start_checksum = self._read_start()
            self._open_before = self._read_open_before()
            self.sessions = self._read_sessions()
            self.num_good, self.checksum = self._count_good()
        except BaseException as error:
            self._connection.close()
            unreadable = isinstance(error, sqlite3.Error | ValueError | TypeError)
            if isinstance(error, JournalError) or not unreadable:
                raise
            raise JournalError(
                f"Expected a journal. Got {path}, damaged so that nothing can be read: {error}."
            ) from error

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def start(self) -> tuple[bytes, bytes]:
        """The optimizer as it was when recording began: pickled, and as plain data.

        Raises:
            JournalError: if it is damaged.
        """
        if self._start is None:
            raise JournalError(
                f"Expected the optimizer that {self.path} starts with. Got a damaged one. Its "
                f"{self.num_good} good records can be saved: tvbo runs export."
            )
        return self._start

    def snapshot(self) -> Snapshot | None:
        """The newest stored state; None where there is none, or a damaged one."""
        try:
            row = self._connection.execute("SELECT * FROM snapshot").fetchone()
            if row is None:
                return None
            seq, chain, found, data, digest = row
            if type(seq) is not int or digest_of(data) != digest:
                raise ValueError("it has another checksum")
            return Snapshot(seq, chain, _environment(found), data)
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._damaged(f"its snapshot: {error}")
            return None

    def open_before(self) -> list[dict]:
        """Trials that were open when recording began, as far as the start is good."""
        return self._open_before

    def records(self, after: int = 0) -> Iterator[tuple[int, Record]]:
        """The good records with their numbers."""
        if self.num_good == 0:
            return
        # In a damaged file, a search may lead elsewhere than reading in order did.
        for seq, *values in self._rows(after if self.damage is None else 0):
            if seq > after:
                yield seq, Record.from_row(values[:-2])
            if seq == self.num_good:
                return

    def written_at(self) -> float | None:
        """When the last good record was written, in seconds of Unix time; None without records."""
        return self._last_written_at

    def chain_at(self, seq: int) -> str | None:
        """Checksum of the record of that number; None where it is not known to be good."""
        if self.damage is not None or seq > self.num_good:
            return None
        row = self._connection.execute(
            "SELECT checksum FROM events WHERE seq = ?", (seq,)
        ).fetchone()
        return None if row is None else row[0]

    def environment_at(self, seq: int) -> Environment:
        """What the event of a number rested on."""
        found = [session for session in self.sessions if session.after < max(seq, 1)]
        return found[-1].environment if found else {}

    def _look_for_damage(self) -> None:
        if (lost := damage_of_wal(self.path)) is not None:
            self._damaged(lost)
        if self.damage is not None:
            return
        try:
            [found] = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            self._connection.close()
            self._damaged(found)
            self._connection = connect_to_read(self.path, forgiving=True)

    def _read_meta(self) -> dict[str, str]:
        # A journal has some ten; what has more is none.
        found = dict(self._connection.execute("SELECT name, value FROM meta LIMIT 100"))
        if not all(isinstance(word, str) for pair in found.items() for word in pair):
            raise ValueError("its meta table holds what is no text")
        if any(len(value) > LONGEST_WORDS for name, value in found.items() if name != "open"):
            raise ValueError("its meta table holds texts that are no description")
        return found

    def _read_sessions(self) -> list[Session]:
        sessions: list[Session] = []
        newest = 0
        try:
            rows = self._connection.execute(
                "SELECT rowid, after, environment, opened_at FROM sessions ORDER BY rowid"
            )
            for number, after, found, opened_at in rows:
                # In a damaged file the same rows may come again and again.
                if number <= newest or type(after) is not int or not is_time(opened_at):
                    raise ValueError(f"session {number} is none")
                newest = number
                sessions.append(Session(after, _environment(found), opened_at))
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._damaged(f"its sessions: {error}")
            return []
        return sessions

    def _read_start(self) -> tuple[tuple[bytes, bytes] | None, str]:
        checksum = self.meta.get("checksum", "")
        columns = "optimizer, state" if self.version > 1 else "optimizer"
        try:
            blobs = self._connection.execute(f"SELECT {columns} FROM start").fetchone()
            if start_checksum(blobs, self.meta) != checksum:
                raise ValueError("it has another checksum")
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._damaged(f"its start: {error}")
            return None, checksum
        return blobs, checksum

    def _read_open_before(self) -> list[dict]:
        if self._start is None:
            return []
        try:
            return _open_trials(self.meta.get("open", "[]"))
        except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
            self._damaged(f"its trials from before: {type(error).__name__}: {error}")
            return []

    def _count_good(self) -> tuple[int, str]:
        good, checksum, self._last_written_at = 0, self._start_checksum, None
        try:
            for seq, *values in self._rows():
                row, [written_at, found] = values[:-2], values[-2:]
                if seq != good + 1 or chained(checksum, seq, row) != found:
                    self._damaged(f"record {good + 1} has another checksum")
                    break
                Record.from_row(row)
                good, checksum = seq, found
                self._last_written_at = written_at if is_time(written_at) else None
        except (sqlite3.Error, ValueError) as error:
            self._damaged(f"record {good + 1}: {error}")
        return good, checksum

    def _rows(self, after: int = 0) -> Iterator[tuple]:
        return self._connection.execute(
            f"SELECT seq, {EVENT_COLUMNS}, written_at, checksum FROM events "
            "WHERE seq > ? ORDER BY seq",
            (after,),
        )

    def _damaged(self, how: str) -> None:
        self.damage = self.damage or " ".join(how.split())


def check_is_journal(path: Path) -> None:
    """Raise unless the file is a journal that this code understands, damaged or not.

    Raises:
        JournalError: saying what it is instead.
    """
    connection, _, _ = open_to_read(path)
    connection.close()


def open_to_read(path: Path) -> tuple[sqlite3.Connection, int, str | None]:
    """A connection, the version of the tables, and what SQLite at once sees wrong with the file.

    Raises:
        JournalError: as :func:`check_is_journal`.
    """
    if not path.is_file():
        raise JournalError(f"Expected a journal. Got {path}, which is no file.")
    damage = None
    try:
        try:
            connection = connect_to_read(path)
        except sqlite3.OperationalError as error:
            raise JournalError(f"Expected a journal to read. Got {path}: {error}.") from error
        except sqlite3.DatabaseError as error:
            damage = str(error)
            connection = connect_to_read(path, forgiving=True)
        try:
            version = _check_kind(path, connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"Expected a journal. Got {path}, which is no journal of tvbo: {error}."
        ) from error
    return connection, version, damage


def _check_kind(path: Path, connection: sqlite3.Connection) -> int:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"Expected a journal. Got {path}, which is no journal of tvbo.")
    if version > VERSION:
        raise JournalError(
            f"Expected a journal with tables of version {VERSION}. Got {path}, of version "
            f"{version}, which a newer tvbo wrote: open it with that one."
        )
    if version != VERSION and version not in TABLES_BEFORE:
        raise JournalError(
            f"Expected a journal with tables of version {VERSION}. Got {path}, of version "
            f"{version}. Journals are not migrated: open it with the tvbo that wrote it."
        )
    if (strange := strange_table(connection, version)) is not None:
        raise JournalError(
            f"Expected the tables of a journal and nothing else. Got {path} with {strange}."
        )
    return version


def start_checksum(blobs: Sequence[bytes], meta: dict[str, str]) -> str:
    """Checksum of what a journal starts with: the first link of the chain."""
    known = sorted((name, value) for name, value in meta.items() if name != "checksum")
    return chained("".join(map(digest_of, blobs)), 0, known)


def _open_trials(text: str) -> list[dict]:
    """The trials that were open when recording began, from JSON.

    Raises:
        KeyError, OverflowError, RecursionError, TypeError, ValueError: if the text is another.
    """
    trials = []
    for row in json.loads(text):
        trial = {
            "trial": row["trial"],
            "t": float(row["t"]),
            "X": [float(x) for x in row["X"]],
            "context": [float(z) for z in row["context"] or ()],
        }
        numbers = (trial["t"], *trial["X"], *trial["context"])
        if type(trial["trial"]) is not int or not all(map(isfinite, numbers)):
            raise ValueError(f"Expected the number of a trial and finite numbers. Got {row}.")
        trials.append(trial)
    return trials


def is_time(value: object) -> bool:
    """Whether a value is a time of Unix that a date can be given for."""
    return type(value) in (int, float) and 0 <= value < END_OF_DATES


def _environment(text: object) -> Environment:
    """Names and versions, from JSON.

    Raises:
        ValueError: if it is something else.
    """
    try:
        found = json.loads(text)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no environment: {error}") from error
    if type(found) is not dict or not all(isinstance(word, str) for word in found.values()):
        raise ValueError("its environment is no table of words")
    return found
