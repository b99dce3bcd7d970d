"""One writer at a time."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tvbo.journal.errors import JournalError


class Lock:
    """Held as long as a journal is open for writing; let go when the process dies, however.

    It is SQLite's own lock, on an empty file beside the journal: a lock on the journal itself would
    keep readers out. A forked process does not inherit it.

    Args:
        path: The journal.

    Raises:
        JournalError: if it is held already, by this process or another.
    """

    def __init__(self, path: Path):
        beside = os.path.realpath(path) + "-lock"
        self._connection = sqlite3.connect(
            beside, isolation_level=None, timeout=0, check_same_thread=False
        )
        try:
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            self._connection.close()
            if "locked" not in str(error):
                raise JournalError(
                    f"Expected a folder to write in. Got {error} for {beside}."
                ) from error
            raise JournalError(
                f"Expected a journal that nobody else writes. Got {path}, which is open in another "
                "process, or in this one: close it there with optimizer.close(), or open it with "
                "read_only=True."
            ) from None

    def release(self) -> None:
        """Let go; the file stays, since removing it while another waits would let two in."""
        self._connection.close()
