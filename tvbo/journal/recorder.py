"""Writes events down before they take effect."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.journal.errors import JournalError
from tvbo.journal.lock import Lock
from tvbo.journal.record import Record, chained, state_digest
from tvbo.journal.schema import EVENT_COLUMNS
from tvbo.journal.snapshot import Snapshots
from tvbo.optimizers.events import Event

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

INSERT = (
    f"INSERT INTO events (seq, {EVENT_COLUMNS}, written_at, checksum) "
    f"VALUES ({', '.join('?' * (EVENT_COLUMNS.count(',') + 4))})"
)


class JournalRecorder:
    """The :class:`tvbo.optimizers.events.Recorder` of a journal in one SQLite file.

    An entry is one transaction: the events are written, they take effect in memory, the transaction
    is committed and on disk. What has returned to the caller is therefore never lost. Where memory
    and journal may differ, the recorder lets go of the file and refuses to go on.

    Args:
        optimizer: Whose events; it is not kept alive.
        path: The journal.
        connection: Open for writing.
        lock: Held, to be released with the connection.
        seq: Number of events in the journal.
        checksum: That of the newest of them.
        snapshots: Keeps opening fast.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        path: Path,
        connection: sqlite3.Connection,
        lock: Lock,
        seq: int,
        checksum: str,
        snapshots: Snapshots,
    ):
        self.path = path
        self._optimizer = weakref.ref(optimizer)
        self._connection = connection
        self._lock = lock
        self._seq = seq
        self._checksum = checksum
        self._snapshots = snapshots
        self._process = os.getpid()
        self._generator = state_digest(optimizer.generator)
        self._ended: str | None = None

    def check(self) -> None:
        """Raise if nothing can be written any more, or somebody else drew random numbers.

        Raises:
            JournalError: saying why, and that the journal can be opened again.
        """
        self._check_open()
        if state_digest(self._optimizer().generator) != self._generator:
            self.spoil("others draw from its generator")
            raise JournalError(
                "Expected a generator that only this optimizer draws from. Got one that has moved "
                "on since the last event, so that the choices cannot be made again: give the "
                "problem and its noise a generator of their own, and go on with "
                f"Optimizer.open({str(self.path)!r})."
            )

    def agreed(self, X: Tensor) -> Tensor:
        """The action as it was chosen."""
        return X

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

    @contextmanager
    def entry(self, *events: Event) -> Iterator[None]:
        """Write events; the body makes them take effect; committed when it ends.

        What refuses its input, by an ``InputDataError``, changes nothing first; after any other
        error of the body, memory may differ from the journal.

        Raises:
            JournalError: if they could not be written or committed, another process wrote
                meanwhile, or as :meth:`check`.
        """
        if events[-1].kind == "ask":
            # It has drawn by now, and was checked before.
            self._check_open()
        else:
            self.check()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_newest()
            seq, checksum = self._insert(events)
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._undo()
            unwritten = isinstance(error, sqlite3.Error)
            if not isinstance(error, InputDataError):
                # The effect may be in memory, or half of it.
                self.spoil(f"{type(error).__name__}: {error}")
            if unwritten:
                raise JournalError(
                    f"Expected to write to {self.path}. Got {error}. What was told last did not "
                    "enter; open the journal again to go on."
                ) from error
            raise
        self._seq, self._checksum = seq, checksum
        self._generator = state_digest(self._optimizer().generator)
        self._snapshots.write_if_due(self._connection, self._optimizer(), seq, checksum)

    def spoil(self, why: str) -> None:
        """Memory and journal may differ: let go of the file, and refuse to go on."""
        self._end(f"that was interrupted ({why}) and may differ from it")

    def close(self) -> None:
        """Let go of the file, leaving it in a state that opens at once."""
        optimizer = self._optimizer()
        usable = self._ended is None and optimizer is not None and os.getpid() == self._process
        if usable and state_digest(optimizer.generator) == self._generator:
            self._snapshots.write(self._connection, optimizer, self._seq, self._checksum)
        self._end("that was closed")

    def _insert(self, events: tuple[Event, ...]) -> tuple[int, str]:
        seq, checksum = self._seq, self._checksum
        generator = self._optimizer().generator
        for event in events:
            row = Record.of(event, generator).to_row()
            seq += 1
            checksum = chained(checksum, seq, row)
            self._connection.execute(INSERT, (seq, *row, time.time(), checksum))
        return seq, checksum

    def _check_newest(self) -> None:
        """Raise if the newest record is not the one written last: locks can be lost."""
        newest = self._connection.execute(
            "SELECT seq, checksum FROM events ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        seq, checksum = newest or (0, self._checksum)
        if (seq, checksum) != (self._seq, self._checksum):
            raise JournalError(
                f"Expected {self.path} as this process left it, with {self._seq} events. Got "
                f"{seq}, or another newest one: another process wrote meanwhile."
            )

    def _undo(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")

    def _end(self, how: str) -> None:
        if self._ended is not None:
            return
        self._ended = how
        # In a forked process the file and its lock are the parent's.
        if os.getpid() == self._process:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._lock.release()

    def __del__(self):
        if hasattr(self, "_ended"):
            self._end("that is gone")
