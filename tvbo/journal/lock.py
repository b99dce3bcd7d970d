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

    It rests on a lock that POSIX drops as soon as the process closes any other handle of the file,
    as where it copies the folder. Another process may then write; the next event finds that out.

    Args:
        path: The journal.

    Raises:
        JournalError: if it is held already, by this process or another.
    """

    def __init__(self, path: Path):
        beside = os.path.realpath(path) + "-lock"
        connection = None
        try:
            connection = sqlite3.connect(
                beside, isolation_level=None, timeout=0, check_same_thread=False
            )
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if "locked" not in str(error):
                raise JournalError(
                    f"Expected a folder to write in, and an empty file for the lock or none. "
                    f"Got {error} for {beside}."
                ) from error
            raise JournalError(
                f"Expected a journal that nobody else writes. Got {path}, which is open in another "
                "process, or in this one: close it there with optimizer.close(), or open it with "
                "read_only=True."
            ) from None
        self._connection = connection

    def release(self) -> None:
        """Let go; the file stays, since removing it while another waits would let two in."""
        self._connection.close()
