"""``tvbo runs`` as a user meets it."""

import csv
import json
import re
import sqlite3
from contextlib import closing

import pandas as pd
import pytest
import torch

from tvbo import recipes


@pytest.fixture
def optimizer(tmp_path):
    """A run that is going on: told, failed, expired, attached and open trials."""
    optimizer = recipes.random_search(bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    optimizer.record(tmp_path / "run.db")
    for t, outcome in enumerate([0.1, 0.7, 0.4]):
        optimizer.tell(optimizer.ask(float(t)), outcome)
    optimizer.fail(optimizer.ask(3.0), "crash [of worker 7]")
    optimizer.expire(optimizer.ask(4.0))
    optimizer.tell(optimizer.attach([0.5, 0.25], 2.5), 0.6, Yvar=0.04)
    optimizer.ask(5.0)
    return optimizer


@pytest.fixture
def run(optimizer, tmp_path):
    return tmp_path / "run.db"


def test_show(tvbo, run):
    code, out, err = tvbo("runs", "show", run)
    assert (code, err) == (0, "")
    assert "RandomSearch" in out
    newest = {"outcome": "outcome", "told": 4, "since": 0.0, "mean": pytest.approx(0.45)}
    assert json.loads(tvbo("status", run, "--json")[1])["newest"] == [newest]
    assert "4 told, 1 open, 1 failed, 1 expired, 0 skipped" in out
    assert re.search(r"│ 2 +│ +1 │ +0\.\d+ │ +0\.\d+ │ +told │ +0\.7 │", out)
    # Square brackets are not taken for markup.
    assert "[of worker" in out


def test_show_of_few_events(tvbo, run):
    _, out, _ = tvbo("runs", "show", run, "--last", "1")
    assert "trial=7" not in out
    assert "open" in out
    assert "crash" not in out


def test_show_of_an_empty_run(tvbo, tmp_path):
    optimizer = recipes.random_search(bounds=torch.tensor([[0.0], [1.0]]))
    optimizer.record(tmp_path / "new.db")
    code, out, _ = tvbo("runs", "show", tmp_path / "new.db")
    assert code == 0
    assert "0 told, 0 open" in out


def test_export(tvbo, run, tmp_path, optimizer):
    code, out, _ = tvbo("runs", "export", run, "--csv", tmp_path / "out.csv")
    assert code == 0
    assert "saved" in out
    table = pd.read_csv(tmp_path / "out.csv", float_precision="round_trip")
    assert table.trial.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert table.how.tolist() == ["asked"] * 5 + ["attached", "asked"]
    assert table.t.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 2.5, 5.0]
    states = ["told", "told", "told", "failed", "expired", "told", "open"]
    assert table.state.tolist() == states
    assert table.outcome.dropna().tolist() == [0.1, 0.7, 0.4, 0.6]
    assert table.outcome_variance.dropna().tolist() == [0.04]
    [trial] = optimizer.open_trials
    assert table.loc[6, ["action_0", "action_1"]].tolist() == trial.X[0].tolist()
    assert table.reason[3] == "crash [of worker 7]"


@pytest.mark.parametrize("reason", ["=HYPERLINK(1)", "+1", "-1", "@a", "\t=1", "\r=1"])
def test_an_exported_text_is_no_formula(tvbo, tmp_path, reason):
    optimizer = recipes.random_search(bounds={"=x": (-2.0, -1.0), "kind": ["-a", "b"]})
    optimizer.record(tmp_path / "run.db")
    optimizer.fail(optimizer.attach({"=x": -1.5, "kind": "-a"}, -3.0), reason)
    optimizer.close()
    tvbo("runs", "export", tmp_path / "run.db", "--csv", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        [row] = csv.DictReader(file)
    assert row["reason"] == f"'{reason}"
    assert (row["t"], row["'=x"], row["kind"]) == ("-3.0", "-1.5", "'-a")


@pytest.mark.parametrize("command", ["export", "plot"])
@pytest.mark.parametrize("name", ["run.db", "other.csv", "run.db-wal", "run.db-journal"])
def test_a_run_is_not_written_over(tvbo, run, tmp_path, command, name):
    (tmp_path / "other.csv").symlink_to(run)
    option = {"export": "--csv", "plot": "--out"}[command]
    before = run.read_bytes()
    code, _, err = tvbo("runs", command, run, option, tmp_path / name)
    assert code == 2
    assert f"Expected another file for {option} than those that are read" in err
    assert run.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("none/x.png", "none/x.png"), ("x.xyz", "ends in one of .*.png"), ("x", "ends in one of")],
)
def test_a_picture_that_cannot_be_written(tvbo, run, tmp_path, name, message):
    code, _, err = tvbo("runs", "plot", run, "--out", tmp_path / name)
    assert code == 2
    assert re.search(message, err)


def test_escape_sequences_of_a_run_are_shown(tvbo, optimizer, tmp_path):
    reason = "\x1b]0;title\x07 \x9b31m \u202egnp\u2066 [red]x[/red] :smile:\n\x7f"
    optimizer.fail(optimizer.open_trials[0], reason)
    optimizer.close()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("UPDATE run SET changed_by = 'someone \x1b[2J[red]'")
    connection.close()
    # A dollar sign would begin a formula in a picture.
    run = (tmp_path / "run.db").rename(tmp_path / "\x1b[31m$\\frac$.db")
    code, out, err = tvbo("runs", "show", run)
    assert (code, err) == (0, "")
    assert all(c.isprintable() for c in out.replace("\n", ""))
    words = " ".join(out.replace("│", " ").split())
    for shown in (r"\x1b]0;title\x07 \x9b31m \u202egnp\u2066", r"[red]x[/red] :smile:\n\x7f"):
        assert shown in words
    assert r"someone \x1b[2J[red]" in words
    assert r"\x1b[31m$\frac$.db" in words
    assert tvbo("runs", "plot", run, "--out", tmp_path / "x.png")[0] == 0
    code, out, _ = tvbo("runs", "export", run, "--csv", tmp_path / "\x1b.csv")
    assert code == 0
    assert r"\x1b.csv" in "".join(out.split())
    # The table is data, and holds the reason as it is.
    assert reason in pd.read_csv(tmp_path / "\x1b.csv").reason.tolist()


def test_plot(tvbo, run, tmp_path):
    code, _, _ = tvbo("runs", "plot", run, "--out", tmp_path / "out.png")
    assert code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_an_empty_run(tvbo, tmp_path):
    optimizer = recipes.random_search(bounds=torch.tensor([[0.0], [1.0]]))
    optimizer.record(tmp_path / "new.db")
    code, _, _ = tvbo("runs", "plot", tmp_path / "new.db", "--out", tmp_path / "out.png")
    assert code == 0


def test_a_damaged_run_is_one_line(tvbo, run):
    with closing(sqlite3.connect(run)) as connection, connection:
        connection.execute("UPDATE trials SET state = 'forged' WHERE id = 3")
    for command in ("show", "export"):
        options = {"show": (), "export": ("--csv", "out.csv")}[command]
        code, _, err = tvbo("runs", command, run, *options)
        assert (code, err.count("\n")) == (2, 1)
        assert "trial 3" in err


@pytest.mark.parametrize("command", ["show", "export", "plot"])
@pytest.mark.parametrize(
    "content",
    [None, b"t,y\n1,2\n"],
    ids=["missing", "text"],
)
def test_bad_input(tvbo, tmp_path, command, content):
    if content is not None:
        (tmp_path / "run.db").write_bytes(content)
    options = {"show": [], "export": ["--csv", "out.csv"], "plot": ["--out", "out.png"]}[command]
    code, _, err = tvbo("runs", command, tmp_path / "run.db", *options)
    assert code == 2
    assert err.startswith("tvbo: Expected a")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["runs", "show"],
        ["runs", "export", "run.db"],
        ["runs", "plot", "run.db"],
        ["runs", "show", "run.db", "--last", "-1"],
    ],
)
def test_bad_options(tvbo, arguments):
    assert tvbo(*arguments)[0] == 2
