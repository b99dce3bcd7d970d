"""Reading a journal: every value is checked, nothing is unpickled, nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvbo.storage.database import EVENT_COLUMNS, JournalError, connect_to_read, open_to_read
from tvbo.storage.description import read_meta, read_units
from tvbo.storage.environment import Environment
from tvbo.storage.record import (
    Record,
    chained,
    digest_of,
    open_trials_from_json,
    parse_json,
)
from tvbo.storage.wal import damage_of_wal

END_OF_DATES = 253_402_300_800
"""Unix time of the year 10,000."""


@dataclass(frozen=True)
class Session:
    """A time during which a journal was open for writing.

    Args:
        after: Number of events before it.
        environment: Versions and source code in use.
        opened_at: When it began, in seconds of Unix time.
    """

    after: int
    environment: Environment
    opened_at: float


@dataclass(frozen=True)
class Snapshot:
    """A stored state of the optimizer.

    Args:
        seq: Number of the event before it.
        chain: Checksum of that event.
        environment: Versions and source code in use.
        state: Bytes of a :class:`~tvbo.storage.state.State`.
    """

    seq: int
    chain: str
    environment: Environment
    state: bytes


class JournalReader:
    """Reads a journal up to its last good record; a context manager.

    Args:
        path: The journal.

    Attributes:
        meta: Description of the optimizer, by name.
        labels: Names of parameters, and the unit of time.
        minimize: Whether smaller outcomes are better.
        sessions: When the journal was open for writing, oldest first.
        num_good: Number of records up to the first damaged one.
        checksum: Checksum of the last good record.
        damage: What is wrong with the file, in words; None for a whole one.

    Raises:
        JournalError: if there is no such file, it is no journal, of another version of the tables,
            or damaged so that nothing can be read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.damage: str | None = None
        self._connection, damage = open_to_read(self.path)
        if damage is not None:
            self._damaged(damage)
        try:
            self._look_for_damage()
            # One transaction, so that what another process writes meanwhile is not seen.
            self._connection.execute("BEGIN")
            self.meta = read_meta(self._connection)
            self.labels, self.minimize = read_units(self.meta)
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
        """The optimizer when recording began: pickled, and as plain data.

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
        """Return the stored state; None where there is none, or a damaged one."""
        with self._damage_noted("its snapshot"):
            row = self._connection.execute("SELECT * FROM snapshot").fetchone()
            if row is None:
                return None
            seq, chain, found, data, digest = row
            if type(seq) is not int or digest_of(data) != digest:
                raise ValueError("it has another checksum")
            return Snapshot(seq, chain, _environment(found), data)
        return None

    def open_before(self) -> list[dict[str, Any]]:
        """Return the trials that were open when recording began; none if the start is damaged."""
        return self._open_before

    def records(self, after: int = 0) -> Iterator[tuple[int, Record]]:
        """Iterate over the good records after a number, with their numbers."""
        if self.num_good == 0:
            return
        # In a damaged file, a search by number may find other rows than reading in order did.
        for seq, *values in self._rows(after if self.damage is None else 0):
            if seq > after:
                yield seq, Record.from_row(values[:-2])
            if seq == self.num_good:
                return

    def written_at(self) -> float | None:
        """Return when the last good record was written, in seconds of Unix time; None without."""
        return self._last_written_at

    def chain_at(self, seq: int) -> str | None:
        """Return the checksum of the record of a number; None where it may be damaged."""
        if self.damage is not None or seq > self.num_good:
            return None
        row = self._connection.execute(
            "SELECT checksum FROM events WHERE seq = ?", (seq,)
        ).fetchone()
        return None if row is None else row[0]

    def environment_at(self, seq: int) -> Environment:
        """Return versions and source code with which the event of a number was recorded."""
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
            self._connection = connect_to_read(self.path, allow_damage=True)

    def _read_sessions(self) -> list[Session]:
        sessions: list[Session] = []
        newest = 0
        with self._damage_noted("its sessions"):
            rows = self._connection.execute(
                "SELECT rowid, after, environment, opened_at FROM sessions ORDER BY rowid"
            )
            for number, after, found, opened_at in rows:
                # In a damaged file, the same rows may be read without end.
                if number <= newest or type(after) is not int or not _is_time(opened_at):
                    raise ValueError(f"session {number} is none")
                newest = number
                sessions.append(Session(after, _environment(found), opened_at))
            return sessions
        return []

    def _read_start(self) -> tuple[tuple[bytes, bytes] | None, str]:
        checksum = self.meta.get("checksum", "")
        with self._damage_noted("its start"):
            blobs = self._connection.execute("SELECT optimizer, state FROM start").fetchone()
            if start_checksum(blobs, self.meta) != checksum:
                raise ValueError("it has another checksum")
            return blobs, checksum
        return None, checksum

    def _read_open_before(self) -> list[dict[str, Any]]:
        with self._damage_noted("its trials from before"):
            text = "[]" if self._start is None else self.meta.get("open", "[]")
            return open_trials_from_json(text)
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
                self._last_written_at = written_at if _is_time(written_at) else None
        except (sqlite3.Error, ValueError) as error:
            self._damaged(f"record {good + 1}: {error}")
        return good, checksum

    def _rows(self, after: int = 0) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(
            f"SELECT seq, {EVENT_COLUMNS}, written_at, checksum FROM events "
            "WHERE seq > ? ORDER BY seq",
            (after,),
        )

    @contextmanager
    def _damage_noted(self, part: str) -> Iterator[None]:
        """Note damage where the body cannot read or understand a part of the file."""
        try:
            yield
        except (sqlite3.Error, ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._damaged(f"{part}: {error}")

    def _damaged(self, how: str) -> None:
        self.damage = self.damage or " ".join(how.split())


def start_checksum(blobs: Sequence[bytes], meta: dict[str, str]) -> str:
    """Return the checksum of what a journal starts with, which the first record goes on from."""
    known = sorted((name, value) for name, value in meta.items() if name != "checksum")
    return chained("".join(map(digest_of, blobs)), 0, known)


def _is_time(value: Any) -> bool:
    """Return whether a value is a Unix time that has a date."""
    return type(value) in (int, float) and 0 <= value < END_OF_DATES


def _environment(text: Any) -> Environment:
    """Return an environment from JSON.

    Raises:
        ValueError: if the text is something else.
    """
    found = parse_json(text)
    if type(found) is not dict or not all(isinstance(word, str) for word in found.values()):
        raise ValueError("its environment is no table of words")
    return found
