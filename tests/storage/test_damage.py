"""Runs that are damaged, or written by somebody by hand: one line each, and no code is run."""

import json
import math
import random
import sqlite3
from contextlib import closing

import pytest
from run_cases import made, play

from tvbo.optimizers import Optimizer
from tvbo.storage import StorageError, read_run

KINDS = "hours", "constraints", "streaming", "random"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Files of runs with open, failed and told trials, by kind."""
    folder, files = tmp_path_factory.mktemp("runs"), {}
    for kind in KINDS:
        optimizer = made(kind)
        optimizer.record(folder / f"{kind}.db")
        play(optimizer, 12)
        optimizer.ask(**({"t": "2026-03-30T00:00:00Z"} if kind == "hours" else {"key": "a"}))
        files[kind] = folder / f"{kind}.db"
    return files


@pytest.fixture(params=KINDS[:2])
def forged(request, runs, run):
    """Changes a copy of a run by statements, and says what is said of it."""

    def forge(*statements, values=()):
        run.write_bytes(runs[request.param].read_bytes())
        with closing(sqlite3.connect(run, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement, values)
        return said_of(run)

    return forge


def said_of(run) -> str:
    """What is said of a run that is read and opened, which is one line, or nothing."""
    said = ""
    for look in (
        lambda: read_run(run).to_frame(),
        lambda: Optimizer.open(run, read_only=True),
        lambda: Optimizer.open(run).close(),
    ):
        try:
            look()
        except StorageError as error:
            said = str(error)
            assert said.isprintable()
            assert len(said) < 1000
    return said


@pytest.mark.slow_cases("500")
@pytest.mark.parametrize("count", [80, 500])
def test_flipped_bits(runs, run, count):
    """The run opens, or a line says what is damaged; rows that SQLite can read are all there."""
    draw = random.Random(count)
    refused = 0
    for _ in range(count):
        kind = draw.choice(KINDS)
        data = bytearray(runs[kind].read_bytes())
        place = draw.randrange(len(data))
        data[place] ^= 1 << draw.randrange(8)
        run.write_bytes(data)
        if said := said_of(run):
            assert str(run) in said
            refused += 1
        else:
            assert read_run(run).counts == read_run(runs[kind]).counts
        run.with_name("run.db-journal").unlink(missing_ok=True)
    # A quarter on the average: which bits are read depends on the file, which holds times.
    assert refused > count / 10


@pytest.mark.slow_cases("100")
@pytest.mark.parametrize("count", [10, 100])
def test_pages_that_are_lost(runs, run, count):
    draw = random.Random(count)
    for _ in range(count):
        data = bytearray(runs["streaming"].read_bytes())
        page = 4096 * draw.randrange(len(data) // 4096)
        if draw.random() < 0.5:
            del data[page:]
        else:
            data[page : page + 4096] = bytes(4096)
        run.write_bytes(data)
        assert str(run) in said_of(run)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE trials RENAME TO others", "CREATE VIEW trials AS SELECT * FROM others"],
        [
            "CREATE TRIGGER more AFTER UPDATE ON run BEGIN DELETE FROM trials; END",
        ],
        ["CREATE VIRTUAL TABLE more USING fts5(x)"],
        ["ALTER TABLE run ADD COLUMN more AS (hex(zeroblob(900000000)))"],
        ["ALTER TABLE trials ADD COLUMN more CHECK (length(hex(zeroblob(9))) > 1)"],
        ["CREATE INDEX more ON trials (hex(zeroblob(9) || id))"],
        ["CREATE TABLE more (x)"],
        ["DROP TABLE trials"],
        ["DELETE FROM run"],
        ["UPDATE run SET version = 99"],
        ["ALTER TABLE trials DROP COLUMN reason"],
    ],
    ids=lambda statements: " ".join(statements[-1].split()[:4]),
)
def test_only_the_tables_of_a_run_are_read(forged, statements):
    assert forged(*statements)


ODD = [
    None,
    -1,
    2**62,
    1.5,
    math.inf,
    -1e308,
    "",
    "word",
    "[[[]]]",
    '{"a": 1, "b": [1e999, "x"]}',
    "[NaN, 1e400]",
    "[" * 100_000 + "]" * 100_000,
    b"\xff" * 7,
    "\x1b[31m\x00",
]
"""Values of wrong types and sizes, numbers out of range, and text that is not what it should be."""

FREE = "key", "reason", "rejection", "optimizer", "informative"
"""Columns that may hold any text, or have it taken for a truth value."""

COLUMNS = [
    *(f"run.{name}" for name in ("settings", "labels", "seed", "state", "changes", "optimizer")),
    *(f"trials.{name}" for name in ("id", "round", "t", "nanoseconds", "parameters", "X", "key")),
    *(f"trials.{name}" for name in ("context", "state", "informative", "information_gain")),
    *(f"trials.{name}" for name in ("reason", "opened", "opened_at", "ended", "asked", "measured")),
    *(f"trials.{name}" for name in ("Y", "Yvar", "dropped", "predicted")),
]


@pytest.mark.slow_cases(*COLUMNS[::2], *COLUMNS[1::4])
@pytest.mark.parametrize("column", COLUMNS)
def test_odd_values(runs, run, column):
    table, name = column.split(".")
    where = {"run": "1", "trials": "id = 5"}[table]
    for number, value in enumerate(ODD):
        run.write_bytes(runs[KINDS[number % 2]].read_bytes())
        with closing(sqlite3.connect(run, isolation_level=None)) as connection:
            try:
                connection.execute(f'UPDATE {table} SET "{name}" = ? WHERE {where}', (value,))
            except sqlite3.IntegrityError:
                continue
        said = said_of(run)
        if name not in FREE and value in (b"\xff" * 7, "word"):
            assert said, (value, column)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM trials WHERE id = 4", "trial 4"),
        ("DELETE FROM trials WHERE id = 13", "its newest|changes"),
        ("UPDATE trials SET Y = '[]' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET Y = '[1.0]' WHERE id = 13", "13"),
        ("UPDATE trials SET Y = '[1.0, 2.0, 3.0]' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET Yvar = '[1.0, 2.0, 3.0]' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET Y = '[Infinity]' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET Y = '[-1e100]' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET state = 'open' WHERE id = 4", "trial 4"),
        ("UPDATE trials SET opened = 1000 - opened WHERE id < 4", "changes|trial"),
        ("UPDATE trials SET ended = opened - 1 WHERE id = 4", "changes|trial 4"),
        ("UPDATE trials SET X = '[NaN, 0.5]' WHERE id = 13", "trial 13"),
        ("UPDATE trials SET X = '[0.5, 0.5, 0.5, 0.5]' WHERE id = 13", ""),
        ("UPDATE trials SET t = 9e999 WHERE id = 4", "trial 4"),
        ("UPDATE run SET changes = changes + 1", "changes"),
    ],
)
def test_what_is_lost_or_does_not_fit_is_named(forged, statement, what):
    said = forged(statement)
    assert said
    assert any(part in said for part in what.split("|")), said


@pytest.mark.slow
def test_a_value_of_some_size_is_not_read(runs, run):
    run.write_bytes(runs["streaming"].read_bytes())
    with closing(sqlite3.connect(run, isolation_level=None)) as connection:
        connection.execute("UPDATE trials SET reason = zeroblob(200000000) WHERE id = 3")
    assert said_of(run)


NOT_OF_A_RUN = [
    {"recipe": "system"},
    {"recipe": "_build"},
    {"recipe": "Settings"},
    {"recipe": "os.system", "options": {}},
    {"recipe": ["gp_ucb"]},
    {"recipe": "gp_ucb", "options": {"nothing": 1}},
    {"recipe": "gp_ucb", "options": 5},
    ["gp_ucb"],
    5,
    None,
]

CODE = [
    {"class": "os:system", "arguments": {"command": "touch TOUCHED"}},
    {"class": "pathlib:Path", "arguments": {}},
    {"class": "subprocess:Popen", "arguments": {"args": ["touch", "TOUCHED"]}},
    {"class": "tvbo.optimizers.base:Path", "arguments": {}},
    {"class": "tvbo.optimizers.base:torch.nn.Linear", "arguments": {"in_features": 1}},
    {"class": "tvbo.storage.database:Database", "arguments": {"url": "TOUCHED"}},
    {"class": "tvbo.acquisition.ucb:UCB.__call__", "arguments": {}},
    {"class": "tvbo.acquisition..ucb:UCB", "arguments": {}},
    {"class": "botorch.acquisition_:X", "arguments": {}},
    {"class": "tvbo.optimizers.nothing:X", "arguments": {}},
    {"class": "type", "value": "os:system"},
    {"class": "partial", "function": "os.system", "arguments": {}},
    {"class": "partial", "function": {"class": "type", "value": "os:system"}, "arguments": {}},
    {"class": "Module", "value": {"class": "Linear", "arguments": {}, "priors": {}}},
    {"class": 5},
    {"class": "foreign", "value": "my.module:function"},
]


@pytest.mark.parametrize("settings", NOT_OF_A_RUN, ids=repr)
def test_settings_of_no_recipe(runs, run, settings):
    check_settings(runs, run, settings)


@pytest.mark.parametrize("option", CODE, ids=lambda option: str(option["class"]))
@pytest.mark.parametrize("name", ["acquisition", "covar_module", "retention", "bounds"])
def test_settings_that_name_code(runs, run, tmp_path, name, option):
    touched = tmp_path / "touched"
    options = {"noise_variance": 0.1, name: option}
    text = json.dumps({"recipe": "gp_ucb", "options": options}).replace("TOUCHED", str(touched))
    check_settings(runs, run, json.loads(text))
    assert not touched.exists()


def check_settings(runs, run, settings) -> None:
    """A run of these is refused in one line; its rows can be read."""
    run.write_bytes(runs["random"].read_bytes())
    with closing(sqlite3.connect(run, isolation_level=None)) as connection:
        connection.execute("UPDATE run SET settings = ?", (json.dumps(settings),))
    with pytest.raises(StorageError) as error:
        Optimizer.open(run)
    assert "\n" not in str(error.value)
    with pytest.raises(StorageError):
        Optimizer.open(run, like=made("random"))
    assert len(read_run(run).trials) == 13
