"""Writing a journal: each event before it takes effect, and a snapshot of the state at times."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from botorch.exceptions.errors import InputDataError
from filelock import FileLock

from tvbo.storage.database import EVENT_COLUMNS, JournalError, error_of
from tvbo.storage.event import Event, EventSink, chained, digest_of, generator_digest
from tvbo.storage.serialize import current_versions, to_bytes

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer

logger = logging.getLogger("tvbo.storage")

INSERT = (
    f"INSERT INTO events (seq, {EVENT_COLUMNS}, written_at, checksum) "
    f"VALUES ({', '.join('?' * (EVENT_COLUMNS.count(',') + 4))})"
)

EVERY = 256
"""Minimum number of events between two snapshots."""

BYTES_PER_EVENT = 2**16
"""A large state is stored more rarely, so that it costs no more bytes than these per event."""


class JournalWriter(EventSink):
    """The sink of a journal.

    Each change of the optimizer is one transaction: the events are inserted, take effect in memory,
    and are committed, which returns when they are on disk. So what has returned to the caller is
    never lost. Where memory and journal may differ, the writer closes the file and refuses
    further events.

    From time to time, and at the end, the state of the optimizer is stored as well; only the
    newest one is kept. It is a shortcut past a replay: it is used only with the versions that it
    was made with, and a journal without one is complete.

    Args:
        optimizer: Whose events; only weakly referenced.
        path: The journal.
        connection: Open for writing.
        lock: Held; released with the connection.
        seq: Number of events in the journal.
        checksum: That of the newest of them.
        last_snapshot: Number of events at the newest stored state, or at the start.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        path: Path,
        connection: sqlite3.Connection,
        lock: FileLock,
        seq: int,
        checksum: str,
        last_snapshot: int = 0,
    ):
        self.path = path
        self._reference = weakref.ref(optimizer)
        self._connection = connection
        self._lock = lock
        self._seq = seq
        self._checksum = checksum
        self._last_snapshot = last_snapshot
        self._interval = EVERY
        self._stores_state = True
        self._process = os.getpid()
        self._generator = generator_digest(optimizer.generator)
        self._ended: str | None = None

    def check(self) -> None:
        """Raise if nothing can be written any more, or other code drew random numbers.

        Raises:
            JournalError: saying why, and that the journal can be opened again.
        """
        self._check_open()
        if generator_digest(self._optimizer.generator) != self._generator:
            self.invalidate("others draw from its generator")
            raise JournalError(
                "Expected a generator that only this optimizer draws from. Got one that has moved "
                "on since the last event, so that the choices cannot be made again: give the "
                "problem and its noise a generator of their own, and go on with "
                f"Optimizer.open({str(self.path)!r})."
            )

    @contextmanager
    def transaction(self, *events: Event) -> Iterator[None]:
        """Write events; the body makes them take effect; commit when it ends.

        Without events, those of the body's transactions are committed together. An
        ``InputDataError`` of a body undoes its events, since input is refused before anything
        changes. After any other error memory may differ from the journal.

        Raises:
            JournalError: if the events could not be written or committed, another process wrote
                meanwhile, or as :meth:`check`.
        """
        if events and events[-1].kind == "ask":
            # It has drawn from the generator by now, and was checked before that.
            self._check_open()
        else:
            self.check()
        is_part, before = self._connection.in_transaction, (self._seq, self._checksum)
        try:
            if not is_part:
                self._connection.execute("BEGIN IMMEDIATE")
                self._check_newest()
            for event in events:
                row = event.to_row()
                self._seq += 1
                self._checksum = chained(self._checksum, self._seq, row)
                self._connection.execute(INSERT, (self._seq, *row, time.time(), self._checksum))
            yield
            if not is_part:
                self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self._seq, self._checksum = before
            if is_part or not events or not isinstance(error, InputDataError):
                self.invalidate(f"{type(error).__name__}: {error}")
            if isinstance(error, sqlite3.Error):
                raise error_of(
                    f"Expected to write to {self.path}. Got {error}. What came last did not "
                    "enter; open the journal again to go on.",
                    error,
                ) from error
            raise
        self._generator = generator_digest(self._optimizer.generator)
        if not is_part and self._seq - self._last_snapshot >= self._interval:
            self.store_state()

    def store_state(self) -> None:
        """Store the state of the optimizer; where that is not possible, the run goes on without."""
        if self._seq == self._last_snapshot or not self._stores_state:
            return
        self._last_snapshot = self._seq
        try:
            data, _ = to_bytes(self._optimizer)
            self._interval = max(EVERY, len(data) // BYTES_PER_EVENT)
            row = (self._seq, self._checksum, current_versions(), data, digest_of(data))
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("DELETE FROM snapshot")
            self._connection.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", row)
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            # Any error: the event is written already, and to raise would deny it.
            self._stores_state = False
            logger.warning("No state is stored, so that the run is replayed when opened: %s", error)

    def invalidate(self, why: str) -> None:
        """Close the file and refuse further events, since memory and journal may differ."""
        self._end(f"that was interrupted ({why}) and may differ from it")

    def close(self) -> None:
        """Store a snapshot, so that the journal opens without a replay, and close the file."""
        optimizer = self._reference()
        is_open = self._ended is None and os.getpid() == self._process
        if is_open and optimizer and generator_digest(optimizer.generator) == self._generator:
            self.store_state()
        self._end("that was closed")

    @property
    def _optimizer(self) -> Optimizer:
        """The optimizer, which is there while one of its methods runs."""
        optimizer = self._reference()
        assert optimizer is not None
        return optimizer

    def _check_open(self) -> None:
        if self._ended is not None:
            raise JournalError(
                f"Expected an optimizer that goes with its journal. Got one {self._ended}: go on "
                f"with Optimizer.open({str(self.path)!r})."
            )
        if os.getpid() != self._process:
            raise JournalError(
                f"Expected process {self._process}, which opened {self.path}. Got {os.getpid()}, "
                "forked from it: ask and tell where the journal was opened."
            )

    def _check_newest(self) -> None:
        """Raise if another process wrote: the lock file may have been deleted by hand."""
        newest = self._connection.execute(
            "SELECT seq, checksum FROM events WHERE seq > 0 ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        seq, checksum = newest or (0, self._checksum)
        if (seq, checksum) != (self._seq, self._checksum):
            raise JournalError(
                f"Expected {self.path} as this process left it, with {self._seq} events. Got "
                f"{seq}, or another newest one: another process wrote meanwhile."
            )

    def _end(self, how: str) -> None:
        if self._ended is not None:
            return
        self._ended = how
        # In a forked process, file and lock are the parent's.
        if os.getpid() == self._process:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._lock.release()

    def __del__(self) -> None:
        # Without the attribute, the constructor has raised.
        if hasattr(self, "_ended"):
            self._end("that is gone")
