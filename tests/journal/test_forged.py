"""Journals that somebody wrote by hand, with every checksum right."""

import contextlib
import math
import sqlite3
import struct
import warnings

import pytest

from tvbo.cli import main
from tvbo.journal import JournalError
from tvbo.journal.reading import start_checksum
from tvbo.journal.record import chained
from tvbo.journal.schema import EVENT_COLUMNS
from tvbo.journal.snapshot import digest_of
from tvbo.optimizers import Optimizer


def packed(*values):
    return struct.pack(f"<{len(values)}d", *values)


ODD = [
    None,
    -1,
    0,
    2**62,
    1.5,
    math.inf,
    1e308,
    "",
    "word",
    "{",
    "[[[]]]",
    '{"a": 1, "b": [1e999, "x"]}',
    '{"a": [1e400]}',
    "[" * 100_000,
    b"",
    b"\xff" * 7,
    packed(math.nan),
    packed(-1e308),
    packed(1e308, 1e308),
    packed(math.inf),
]
"""Values of wrong types and sizes, numbers out of range, and text that is not what it should be."""

COLUMNS = {
    "events": ["seq", *EVENT_COLUMNS.split(", "), "written_at"],
    "meta": ["name", "value"],
    "sessions": ["after", "environment", "opened_at"],
    "start": ["optimizer", "state"],
    "snapshot": ["seq", "chain", "environment", "state"],
}


def forge(path, statement, *values) -> None:
    """Change a journal, and make its checksums right again as far as they can be."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(statement, values)
        blobs = connection.execute("SELECT optimizer, state FROM start").fetchone()
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        checksum = "none"
        with contextlib.suppress(TypeError):
            checksum = start_checksum(blobs, meta)
        connection.execute("UPDATE meta SET value = ? WHERE name = 'checksum'", (checksum,))
        rows = connection.execute(f"SELECT seq, {EVENT_COLUMNS} FROM events ORDER BY seq")
        for seq, *row in rows.fetchall():
            checksum = chained(checksum, seq, row)
            connection.execute("UPDATE events SET checksum = ? WHERE seq = ?", (checksum, seq))
        [data] = connection.execute("SELECT state FROM snapshot").fetchone() or [None]
        if isinstance(data, bytes):
            connection.execute("UPDATE snapshot SET digest = ?", (digest_of(data),))
    except sqlite3.IntegrityError:
        pytest.skip("SQLite itself refuses this value in this column")
    finally:
        connection.close()


def use(path, make) -> list[str]:
    """Do all that can be done with a journal; gives what was said of it."""
    said = []
    ways = [{"like": make()}, {"like": make(), "read_only": True}, {}, {"read_only": True}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in ways:
            try:
                Optimizer.open(path, progress=False, **way)._recorder_of_test = None
            except JournalError as error:
                said.append(str(error))
        out = path.parent / "out"
        for command in (
            ["show"],
            ["export", "--csv", f"{out}.csv"],
            ["plot", "--out", f"{out}.png"],
        ):
            with pytest.raises(SystemExit) as stop:
                main(["runs", command[0], str(path), *command[1:]])
            assert stop.value.code in (0, 2), command
    return said
