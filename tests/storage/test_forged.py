"""Journals that somebody wrote by hand, with every checksum right."""

import io
import json
import math
import pickle
import sqlite3
import struct
import time
import warnings
from pathlib import Path

import pytest
import torch

from tvbo.cli import main
from tvbo.optimizers import Optimizer
from tvbo.storage import DamagedJournalWarning, JournalError
from tvbo.storage.database import EVENT_COLUMNS
from tvbo.storage.state import State, StateError


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


@pytest.mark.parametrize("name", ["open", "search space", "tvbo"])
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


@pytest.mark.parametrize("read_only", [True, False])
def test_with_like_nothing_is_unpickled(recorded, make_random, play, tmp_path, forge, read_only):
    run, touched = recorded(12), tmp_path / "touched"
    forge(run, "UPDATE start SET optimizer = ?", pickle.dumps(Touch(touched)))
    whole = make_random()
    play(whole, 12)
    optimizer = Optimizer.open(run, like=make_random(), read_only=read_only)
    assert play(optimizer, 8) == play(whole, 8)
    assert not touched.exists()


@pytest.mark.parametrize("part", ["start", "snapshot"])
def test_a_state_that_is_a_pickle_is_not_run(forged, make_random, tmp_path, part):
    touched = tmp_path / "touched"
    file = io.BytesIO()
    torch.save(Touch(touched), file)
    run = forged(f"UPDATE {part} SET state = ?", file.getvalue())
    if part == "start":
        with pytest.raises(JournalError, match="UnpicklingError"):
            Optimizer.open(run, like=make_random())
    else:
        Optimizer.open(run, like=make_random())
    assert not touched.exists()


@pytest.mark.parametrize(
    "node",
    [
        {"object": "subprocess.Popen", "state": {}},
        {"function": "os.system"},
        {"class": "subprocess.Popen"},
        {"object": "tvbo.storage.writer.JournalWriter", "state": {}},
        {"object": "tvbo.cli.main", "state": {}},
        {"object": "torch.nn.modules.module.sys", "state": {}},
        {"function": "torch.load"},
        {"function": "tvbo.recipes.gp_ucb"},
        {"method": "tvbo.optimizers.base.Optimizer.record", "of": [0]},
        {"opaque": "subprocess.Popen", "words": ""},
        {"kind": "partial", "parts": [[1], [1], [1]]},
        {"kind": "tuple", "parts": "itself"},
        {"kind": "Popen", "parts": []},
        {"list": [[10**9]]},
        {"list": [["x"]]},
        {"list": [{}]},
        {"tensor": -1, "grad": False},
        {"kind": "Generator", "parts": [0, 0]},
        {"unheard_of": 0},
        {},
    ],
    ids=lambda node: "-".join(str(value) for value in node.values())[:40] or "empty",
)
def test_a_state_names_only_what_is_known(make_random, node):
    state = State.of(make_random())
    if node.get("parts") == "itself":
        node = node | {"parts": [[len(state.nodes)]]}
    nodes = [*state.nodes, node]
    nodes[0]["state"]["more"] = [len(nodes) - 1]
    forged = State(state.root, nodes, state.tensors)
    with pytest.raises(StateError):
        State.from_bytes(forged.to_bytes()).restore(make_random(), state.classes)


@pytest.mark.parametrize(
    "trial", [{"trial": 1.5}, {"t": math.inf}, {"X": [math.nan]}, {"context": [-math.inf]}]
)
def test_trials_from_before_are_numbers(forged, make_random, trial):
    row = {"trial": 1, "t": 1.0, "X": [0.5], "context": None} | trial
    run = forged("UPDATE meta SET value = ? WHERE name = 'open'", json.dumps([row]))
    with pytest.raises(
        JournalError,
    ):
        Optimizer.open(run, like=make_random())
    with pytest.warns(DamagedJournalWarning):
        assert Optimizer.open(run, read_only=True)._num_asked > 0
