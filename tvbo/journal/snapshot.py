"""The newest state of the optimizer, so that opening need not replay everything."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

from tvbo.journal import pickles
from tvbo.journal.environment import environment

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer

EVERY = 256
"""Events between two snapshots, at least."""

BYTES_PER_EVENT = 2**16
"""A large state is stored more rarely, so that storing it costs no more than this per event."""

LARGEST = 2**29
"""Bytes; a larger state is not stored, since SQLite takes no more than twice that in one piece."""


class Snapshots:
    """Stores the state of an optimizer from time to time, the newest one only.

    A snapshot is a short cut and never more than that: it is used only where versions and code are
    those it was made with, and everything can be replayed without it.

    Args:
        present: The environment when the journal was opened: of the code in memory, whatever
            becomes of its files meanwhile.
        modules: The modules that it covers.
        seq: Number of events at the newest snapshot, or at the start.
    """

    def __init__(self, present: dict[str, str], modules: set[str], seq: int):
        self._environment = present
        self._modules = modules
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
            data = pickles.dump(optimizer)
            self._wait = max(EVERY, len(data) // BYTES_PER_EVENT)
            if len(data) > LARGEST:
                return
            used = pickles.modules_of(data)
            if not used <= self._modules:
                self._modules |= used
                self._environment = environment(self._modules) | self._environment
        except Exception as error:
            # The event before it is written, and is what counts.
            self.refused = str(error)
            return
        row = (seq, chain, json.dumps(self._environment), data, digest_of(data))
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
    """Checksum of a pickled optimizer."""
    return hashlib.sha256(data).hexdigest()
