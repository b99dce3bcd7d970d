"""Journals that somebody wrote by hand, with every checksum right."""

import io
import math
import os
import pickle
import sqlite3
import struct
import subprocess
import time
import warnings
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.cli import main
from tvbo.optimizers import Optimizer
from tvbo.storage import JournalError, JournalReader
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.storage.serialize import from_bytes, to_bytes


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
    "sessions": ["after", "opened_at"],
    "start": ["state"],
    "snapshot": ["seq", "chain", "versions", "state"],
}


def read(path, make, plot=False) -> list[str]:
    """Do all that can be done with a journal; gives what was said of it.

    Whatever else is raised than a JournalError, or by a command than its exit code, passes through.
    """
    said = []
    ways = [{"like": make()}, {"like": make(), "read_only": True}, {}, {"read_only": True}]
    out = path.with_name("out")
    commands = [["show"], ["export", "--csv", f"{out}.csv"]]
    if plot:
        commands.append(["plot", "--out", f"{out}.png"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in ways:
            try:
                Optimizer.open(path, progress=False, **way).close()
            except JournalError as error:
                said.append(str(error))
        for name, *options in commands:
            with pytest.raises(SystemExit) as stop:
                main(["runs", name, str(path), *options])
            assert stop.value.code in (0, 2), name
    return said


@pytest.fixture
def forged(recorded, play, make_random, forge):
    """A journal of 20 events with a snapshot after the 12th, changed by a statement."""

    def write(statement, *values):
        run = recorded(12, close=True)
        optimizer = Optimizer.open(run, like=make_random())
        play(optimizer, 8)
        optimizer._event_sink._end("that is dead")
        forge(run, statement, *values)
        return run

    return write


PLACES = [(table, column) for table, columns in COLUMNS.items() for column in columns]


@pytest.mark.slow_cases(*map(str, range(len(PLACES), 2 * len(PLACES))))
@pytest.mark.parametrize("number", range(2 * len(PLACES)))
def test_odd_values(forged, make_random, number):
    """Two for each column; which, changes from column to column, so that all have their turn."""
    table, column = PLACES[number % len(PLACES)]
    value = ODD[(7 * number) % len(ODD)]
    where = {"events": "WHERE seq = 3", "meta": "WHERE name = 'columns'"}.get(table, "")
    read(forged(f"UPDATE {table} SET {column} = ? {where}", value), make_random)


@pytest.mark.parametrize("column", EVENT_COLUMNS.split(", "))
@pytest.mark.parametrize("value", [-1, b"\xff" * 7], ids=["int", "cut"])
def test_a_column_of_the_wrong_type_is_named(forged, make_random, column, value):
    run = forged(f"UPDATE events SET {column} = ? WHERE seq = 4", value)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=make_random())


@pytest.mark.parametrize("name", ["units", "search space", "layout"])
@pytest.mark.parametrize("value", ["word", "[" * 100_000, '[{"trial": 1}]', b"\xff"])
def test_odd_descriptions(forged, make_random, name, value):
    run = forged("UPDATE meta SET value = ? WHERE name = ?", value, name)
    said = read(run, make_random)
    assert not said or "damaged" in said[0]


def test_a_huge_outcome_is_refused_in_words_or_taken(forge, make_streaming, run):
    """A journal may hold an outcome that is refused by now."""
    optimizer = make_streaming()
    optimizer.record(run)
    optimizer.tell(optimizer.ask(), 0.5)
    optimizer.close()
    forge(run, "UPDATE events SET Y = ? WHERE seq = 2", packed(1.7e308))
    said = read(run, make_streaming)
    assert all("event" in words for words in said)


@pytest.mark.parametrize(
    "statements",
    [
        [
            "ALTER TABLE events RENAME TO others",
            "CREATE VIEW events AS WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 "
            "FROM n) SELECT others.* FROM others, n",
        ],
        ["ALTER TABLE meta ADD COLUMN more AS (hex(zeroblob(900000000)))"],
        ["CREATE TRIGGER more AFTER INSERT ON sessions BEGIN DELETE FROM events; END"],
        ["CREATE TABLE more (x)"],
        ["DROP TABLE snapshot"],
    ],
    ids=["view", "computed", "trigger", "more", "less"],
)
def test_only_plain_tables_are_read(recorded, make_random, capsys, statements):
    run = recorded(8)
    connection = sqlite3.connect(run, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    started = time.monotonic()
    for given in ({}, {"like": make_random()}, {"read_only": True}):
        with pytest.raises(JournalError):
            Optimizer.open(run, **given)
    with pytest.raises(SystemExit) as stop:
        main(["runs", "show", str(run)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert time.monotonic() - started < 30


class Touch:
    """Pickled, a command that makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def stored(thing):
    """A thing in the form in which optimizers are stored."""
    return to_bytes(thing)[0]


@pytest.mark.parametrize("part", ["start", "snapshot"])
@pytest.mark.parametrize("read_only", [True, False])
def test_with_like_no_code_is_run(forged, make_random, play, tmp_path, part, read_only):
    """A snapshot is a shortcut: without it, the run goes on."""
    touched = tmp_path / "touched"
    run = forged(f"UPDATE {part} SET state = ?", stored([make_random(), Touch(touched)]))
    given = {"like": make_random(), "read_only": read_only}
    if part == "start":
        with pytest.raises(JournalError):
            Optimizer.open(run, **given)
    else:
        whole = make_random()
        play(whole, 20)
        assert play(Optimizer.open(run, **given), 5) == play(whole, 5)
    assert not touched.exists()


class Calls:
    """Pickled, a call."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "forged",
    [
        Calls(subprocess.Popen, (["true"],)),
        Calls(os.system, ("true",)),
        Calls(eval, ("1",)),
        Calls(getattr, (os, "system")),
        Calls(getattr, (RBFKernel(), "__class__")),
        Calls(getattr, (RBFKernel(), "register_forward_hook")),
        Calls(torch.load, ("file",)),
        Calls(torch.nn.functional.relu, (torch.zeros(1),)),
        recipes.gp_ucb,
        subprocess.Popen,
        JournalReader,
        main,
        Path("file"),
    ],
    ids=range(13),
)
def test_a_state_names_only_what_is_known(make_random, forged):
    data, held = to_bytes(make_random())
    from_bytes(data, held)
    with pytest.raises(JournalError):
        from_bytes(stored([forged]), held)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"graph": torch.zeros(3, dtype=torch.uint8), "storages": []},
        {"graph": "text", "storages": []},
        {"graph": torch.tensor([*pickle.dumps(torch.zeros(2))], dtype=torch.uint8)},
    ],
    ids=["empty", "zeros", "text", "missing"],
)
def test_bytes_of_something_else(make_random, found):
    file = io.BytesIO()
    torch.save(found, file)
    for data in (file.getvalue(), pickle.dumps(make_random()), b""):
        with pytest.raises(JournalError):
            from_bytes(data, {})


@pytest.mark.parametrize(
    ("column", "value"),
    [("trial_id", 1.5), ("t", packed(math.inf)), ("X", packed(math.nan)), ("kind", "tell")],
)
def test_trials_from_before_are_numbers(run, make_random, play, forge, column, value):
    optimizer = make_random()
    optimizer.ask()
    optimizer.record(run)
    play(optimizer, 5)
    optimizer.close()
    forge(run, f"UPDATE events SET {column} = ? WHERE seq = 0", value)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=make_random())
    with JournalReader(run) as journal:
        assert (journal.open_before, journal.num_good) == ([], 5)
