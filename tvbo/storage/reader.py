"""Reading a journal: every value is checked, nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tvbo.spaces.labels import Labels
from tvbo.storage.database import EVENT_COLUMNS, JournalError, open_to_read
from tvbo.storage.event import (
    ENDINGS,
    OPENING,
    Event,
    chained,
    digest_of,
    parse_json,
)
from tvbo.storage.wal import damage_of_wal

if TYPE_CHECKING:
    import pandas as pd

END_OF_DATES = 253_402_300_800
"""Unix time of the year 10,000."""

LONGEST_VALUE = 2_000
"""Characters of a description in the table ``meta``; a longer one is forged."""

ANY_LENGTH = ("units", "space")
"""Entries of that table that may be longer."""


class JournalReader:
    """Reads a journal up to its last good record; a context manager.

    Args:
        path: The journal.

    Attributes:
        meta: Description of the optimizer, by name.
        labels: Names of parameters, and the unit of time.
        minimize: Whether smaller outcomes are better.
        sessions: When the journal was opened for writing, oldest first: the number of events before
            that, and the time in seconds of Unix time.
        open_before: The trials that were open when recording began; none if the start is damaged.
        num_good: Number of records up to the first damaged one.
        checksum: Checksum of the last good record.
        written_at: When it was written, in seconds of Unix time; None without.
        damage: What is wrong with the file, as text; None for a whole one.

    Raises:
        JournalError: if there is no such file, it is no journal, of another version of the tables,
            or damaged so that nothing can be read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.damage: str | None = None
        self._connection = open_to_read(self.path)
        try:
            self._look_for_damage()
            # One transaction, so that what another process writes meanwhile is not seen.
            self._connection.execute("BEGIN")
            self.meta = _read_meta(self._connection)
            self.labels, self.minimize = _read_units(self.meta)
            self._start, self.open_before = self._read_start()
            self.sessions = self._read_sessions()
            self._count_good()
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
    def start(self) -> bytes:
        """The optimizer when recording began, as bytes.

        Raises:
            JournalError: if it is damaged.
        """
        if self._start is None:
            raise JournalError(
                f"Expected the optimizer that {self.path} starts with. Got a damaged one. Its "
                f"{self.num_good} good records can be saved: tvbo runs export."
            )
        return self._start

    def snapshot(self) -> tuple[int, str, bytes] | None:
        """Return the stored state, after the number of the event before it and the versions.

        None where there is none for the records that are read.

        A damaged one is none: it is a shortcut, and the records are all that counts.
        """
        if self.damage is not None:
            return None
        with suppress(sqlite3.Error, TypeError, ValueError):
            row = self._connection.execute(
                "SELECT seq, versions, state, digest FROM snapshot JOIN events USING (seq) "
                "WHERE chain = checksum AND seq <= ?",
                (self.num_good,),
            ).fetchone()
            if row is not None and digest_of(row[2]) == row[3]:
                return row[0], str(row[1]), row[2]
        return None

    def events(self, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Iterate over the good records after a number, with their numbers."""
        if self.num_good == 0:
            return
        # In a damaged file, a search by number may find other rows than reading in order did.
        for seq, *values in self._rows("seq > ?", after if self.damage is None else 0):
            if seq > after:
                yield seq, Event.from_row(values[:-2])
            if seq == self.num_good:
                return

    def trials(self) -> Iterator[tuple[Event | None, Event | None]]:
        """Iterate over how each trial was opened and how it ended, oldest first.

        The first is None where the start is damaged and the trial is from before it; the second
        where it has not ended.
        """
        opened: dict[int | None, Event | None] = {each.trial_id: each for each in self.open_before}
        ended: dict[int | None, Event] = {}
        for _, event in self.events():
            if event.kind in OPENING:
                opened[event.trial_id] = event
            elif event.kind in ENDINGS:
                opened.setdefault(event.trial_id, None)
                ended[event.trial_id] = event
        for number, how in opened.items():
            yield how, ended.get(number)

    def _look_for_damage(self) -> None:
        if (lost := damage_of_wal(self.path)) is not None:
            self._damaged(lost)
        try:
            [found] = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            self._damaged(found)

    def _read_sessions(self) -> list[tuple[int, float]]:
        sessions: list[tuple[int, float]] = []
        with self._damage_noted("its sessions"):
            rows = self._connection.execute(
                "SELECT rowid, after, opened_at FROM sessions ORDER BY rowid"
            )
            for number, after, opened_at in rows:
                # In a damaged file, the same rows may be read without end.
                if number != len(sessions) + 1 or type(after) is not int or not _is_time(opened_at):
                    raise ValueError(f"session {number} is none")
                sessions.append((after, opened_at))
            return sessions
        return []

    def _read_start(self) -> tuple[bytes | None, list[Event]]:
        self.checksum = self.meta.get("checksum", "")
        with self._damage_noted("its start"):
            [state] = self._connection.execute("SELECT state FROM start").fetchone()
            rows = [row for _, *row, _, _ in self._rows("seq <= ?", 0)]
            if start_checksum(state, self.meta, rows) != self.checksum:
                raise ValueError("it has another checksum")
            return state, [Event.from_row(row) for row in rows]
        return None, []

    def _count_good(self) -> None:
        self.num_good, self.written_at = 0, None
        try:
            for seq, *values in self._rows("seq > ?", 0):
                row, [written_at, found] = values[:-2], values[-2:]
                if seq != self.num_good + 1 or chained(self.checksum, seq, row) != found:
                    self._damaged(f"record {self.num_good + 1} has another checksum")
                    break
                Event.from_row(row)
                self.num_good, self.checksum = seq, found
                self.written_at = written_at if _is_time(written_at) else None
        except (sqlite3.Error, ValueError) as error:
            self._damaged(f"record {self.num_good + 1}: {error}")

    def _rows(self, where: str, seq: int) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(
            f"SELECT seq, {EVENT_COLUMNS}, written_at, checksum FROM events "
            f"WHERE {where} ORDER BY seq",
            (seq,),
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


def start_checksum(state: bytes, meta: dict[str, str], opened: Iterable[Sequence[Any]] = ()) -> str:
    """Return the checksum of what a journal starts with, which the first record goes on from.

    Args:
        state: The optimizer.
        meta: Its description.
        opened: Rows of the trials that were open.
    """
    known = sorted((name, value) for name, value in meta.items() if name != "checksum")
    return chained(digest_of(state), 0, [*known, *map(tuple, opened)])


def read_description(path: Path) -> tuple[dict[str, str], Labels]:
    """Return the description of a journal, by name, and its labels; no record is checked.

    Raises:
        JournalError: if the file is not a journal, or its description cannot be read.
    """
    with closing(open_to_read(path)) as connection:
        try:
            meta = _read_meta(connection)
            return meta, _read_units(meta)[0]
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise JournalError(
                f"Expected a whole journal. Got {path}, damaged: {error}."
            ) from error


def trials_of(journal: JournalReader) -> pd.DataFrame:
    """Return a table with one row for each trial, oldest first.

    Args:
        journal: Open for reading; of a damaged one, the good records are used.

    Returns:
        Columns ``trial``, ``how`` (asked, attached, or before: it was open when recording began),
        ``t``, the parameters of action and context by name or as ``action_i`` and ``context_i``,
        ``state`` (open, told, failed, expired, skipped), the outcomes by name and their variances,
        ``outcome`` and ``outcome_variance`` where they have no names, and ``reason``.
    """
    import pandas as pd

    labels, rows = journal.labels, []
    before = {opened.trial_id for opened in journal.open_before}
    outcomes = labels.outcome_columns
    variances = [f"{name}_variance" for name in outcomes]
    for opened, ended in journal.trials():
        row: dict[str, Any] = {}
        if opened is not None:
            how = "asked" if opened.kind == "ask" else "attached"
            how = "before" if opened.trial_id in before else how
            row = {"trial": opened.trial_id, "how": how, "reason": ""}
            row["state"] = "skipped" if opened.skipped else "open"
            X = torch.tensor(opened.X, dtype=torch.float64)
            context = torch.tensor(opened.context, dtype=torch.float64) if opened.context else None
            row |= labels.to_row(X, opened.t, context)
        if ended is not None:
            row |= {"trial": ended.trial_id, "state": ENDINGS[ended.kind], "reason": ended.reason}
            row |= dict(zip(outcomes, ended.Y, strict=False))
            row |= dict(zip(variances, ended.Yvar, strict=False))
        rows.append(row)
    frame = pd.DataFrame(rows)
    first, last = ["trial", "how", "t"], ["state", *outcomes, *variances, "reason"]
    between = [name for name in frame.columns if name not in (*first, *last)]
    frame = frame.reindex(columns=[*first, *between, *last])
    kept = {"trial", "how", "state", "reason", *labels.columns(0, 0)}
    kept |= {"t"} if labels.time else set()
    return frame.astype({name: float for name in frame.columns if name not in kept})


def _read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the table ``meta``; raise ``ValueError`` if it holds something else."""
    # A limit, since a forged table may be long; a journal has some ten rows.
    found = dict(connection.execute("SELECT name, value FROM meta LIMIT 100"))
    if not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise ValueError("its meta table holds what is no text")
    if any(len(value) > LONGEST_VALUE for name, value in found.items() if name not in ANY_LENGTH):
        raise ValueError("its meta table holds texts that are no description")
    return found


def _read_units(meta: dict[str, str]) -> tuple[Labels, bool]:
    """Return labels, and whether smaller outcomes are better; raise ``ValueError`` for bad ones."""
    try:
        found = parse_json(meta["units"])
        return Labels.from_json(found), bool(found["minimize"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its units are none: {error}") from error


def _is_time(value: Any) -> bool:
    """Return whether a value is a Unix time that has a date."""
    return type(value) in (int, float) and 0 <= value < END_OF_DATES
