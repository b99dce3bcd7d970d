"""The newest state of the optimizer, so that opening need not replay everything."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from tvbo.journal.state import State

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

EVERY = 256
"""Events between two snapshots, at least."""

BYTES_PER_EVENT = 2**16
"""A large state is stored more rarely, so that storing it costs no more than this per event."""

LARGEST = 2**29
"""Bytes; a larger state is not stored, since SQLite takes no more than twice that in one piece."""


class Snapshots:
    """Stores the state of an optimizer from time to time, the newest one only, as plain data.

    A snapshot is a short cut and never more than that: it is used only where versions and code are
    those it was made with, and everything can be replayed without it. So none is stored once the
    optimizer holds what has no plain form, such as objects of the user's own class that the
    optimizer did not hold when recording began.

    Args:
        present: The environment when the journal was opened: of the code in memory, whatever
            becomes of its files meanwhile.
        classes: Full names of the classes that the optimizer held when recording began.
        seq: Number of events at the newest snapshot, or at the start.

    Attributes:
        refused: Why none is stored any more; None as long as they are.
    """

    def __init__(self, present: dict[str, str], classes: Iterable[str], seq: int):
        self._environment = json.dumps(present)
        self._classes = frozenset(classes)
        self._seq = seq
        self._wait = EVERY
        self.refused: str | None = None

    def write_if_due(
        self, connection: sqlite3.Connection, optimizer: Optimizer, seq: int, chain: str
    ) -> None:
        """Store the state if enough has happened since the last one."""
        if seq - self._seq >= self._wait:
            self.write(connection, optimizer, seq, chain)

    def write(
        self, connection: sqlite3.Connection, optimizer: Optimizer, seq: int, chain: str
    ) -> None:
        """Store the state; the run goes on where that is not possible.

        Args:
            connection: Of the journal.
            optimizer: As it is after event ``seq``.
            seq: Number of that event.
            chain: Checksum of that event.
        """
        if seq == self._seq or self.refused is not None:
            return
        self._seq = seq
        try:
            state = State.of(optimizer)
            if unreadable := state.unreadable(self._classes):
                self.refused = f"no plain form of {', '.join(unreadable)}"
                return
            data = state.to_bytes()
        except Exception as error:
            # The event before it is written, and is what counts.
            self.refused = str(error)
            return
        self._wait = max(EVERY, len(data) // BYTES_PER_EVENT)
        if len(data) > LARGEST:
            return
        row = (seq, chain, self._environment, data, digest_of(data))
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM snapshot")
            connection.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", row)
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            # The events are what counts, and they are written.
            self.refused = str(error)


def digest_of(data: bytes) -> str:
    """Checksum of a stored state."""
    return hashlib.sha256(data).hexdigest()
