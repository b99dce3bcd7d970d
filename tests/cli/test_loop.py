"""``tvbo new``, ``ask``, ``tell``, ``fail``, ``expire``, ``backup``: a loop from the shell."""

import json
import math
import sqlite3
from contextlib import closing

import pytest

from tvbo import recipes
from tvbo.cli.space_file import SpaceError, optimizer_of
from tvbo.optimizers import Optimizer
from tvbo.storage import read_run

SPACE = """
minimize = true

[parameters]
rate = { type = "float", bounds = [1e-4, 1.0], log = true }
layers = { type = "integer", bounds = [1, 8] }
rule = { type = "category", values = ["adam", "sgd", "rms"] }
size = { type = "category", values = ["s", "m", "l"], ordered = true }
version = { type = "fixed", value = 4 }

[contexts]
load = { type = "float", bounds = [0.0, 5.0] }
day = { type = "category", values = ["mon", "tue"] }
"""
HERE = ("--context", "load=3", "--context", "day=tue")


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "SPACE.toml"
    path.write_text(SPACE)
    return path


@pytest.fixture
def run(tvbo, space, tmp_path):
    code, out, err = tvbo("new", space, tmp_path / "run.db")
    assert (code, err) == (0, "")
    assert "rate from 0.0001 to 1, logarithmic" in " ".join(out.split())
    return tmp_path / "run.db"


def asked(tvbo, run, *options):
    code, out, err = tvbo("ask", run, *HERE, "--json", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_loop(tvbo, run, space):
    like = optimizer_of(SPACE)
    for number in range(1, 5):
        trial = asked(tvbo, run)
        # The same as in one process that never ends.
        expected = like.ask(context={"load": 3.0, "day": "tue"})
        assert trial["parameters"] == expected.parameters
        assert trial == {
            "trial": number,
            "t": float(number),
            "parameters": expected.parameters,
            "context": {"load": 3.0, "day": "tue"},
            "skipped": False,
        }
        outcome = trial["parameters"]["layers"] - 3.5
        assert tvbo("tell", run, number, "--", outcome)[0] == 0
        like.tell(number, outcome)
    trial = asked(tvbo, run)
    code, out, _ = tvbo("fail", run, trial["trial"], "out of memory")
    assert (code, out) == (0, "failed trial 5\n")
    assert "trial 6: rate=" in tvbo("ask", run, *HERE)[1]
    trials = read_run(run).to_frame()
    assert trials.state.tolist() == ["told"] * 4 + ["failed", "open"]
    assert trials.reason[4] == "out of memory"
    assert trials.load.tolist() == [3.0] * 6


def test_a_time_far_ahead_is_no_lock(tvbo, run):
    assert asked(tvbo, run, "--t", 1000)["t"] == 1000
    code, out, err = tvbo("ask", run, *HERE, "--t", 2)
    assert (code, out) == (2, "")
    assert "trial 1" in err
    tvbo("fail", run, 1, "a wrong clock")
    assert asked(tvbo, run, "--t", 2)["t"] == 2


def test_a_key_gives_the_same_trial_again(tvbo, run):
    one = asked(tvbo, run, "--key", "request 17")
    assert asked(tvbo, run, "--key", "request 17") == one
    assert asked(tvbo, run, "--key", "request 18")["trial"] == 2
    other = ("--context", "load=1", "--context", "day=mon", "--key", "request 17")
    code, _, err = tvbo("ask", run, *other)
    assert code == 2
    assert "Expected the context of the ask with key 'request 17'" in err
    tvbo("tell", run, 1, 0.5)
    code, _, err = tvbo("ask", run, *HERE, "--key", "request 17")
    assert code == 2
    assert "Got trial 1" in err
    with Optimizer.open(run) as again:
        assert again.num_trials == 2


def test_expire(tvbo, run):
    for t in (1, 2, 3):
        asked(tvbo, run, "--t", t)
    assert tvbo("expire", run, 3)[:2] == (0, "expired 3\n")
    assert tvbo("expire", run, "--older-than", 1.5, "--t", 3)[:2] == (0, "expired 1\n")
    assert tvbo("expire", run, "--older-than", 1.5, "--t", 3)[:2] == (0, "expired no trial\n")
    assert read_run(run).counts["expired"] == 2


def test_what_the_model_says(tvbo, run):
    for number in range(1, 4):
        asked(tvbo, run)
        tvbo("tell", run, number, float(number))
    before = run.read_bytes()

    def said(command, *arguments):
        code, out, err = tvbo(command, run, *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    best = said("recommend", *HERE)
    optimizer = Optimizer.open(run, read_only=True)
    expected = optimizer.recommend({"load": 3.0, "day": "tue"})
    assert (best["parameters"], best["mean"]) == (expected.parameters, expected.mean)
    half = 1.96 * expected.standard_deviation
    assert best["band"] == pytest.approx([best["mean"] - half, best["mean"] + half])
    values = [f"{name}={value}" for name, value in best["parameters"].items()]
    there = said("predict", *values, *HERE)
    assert there["context"] == {"load": 3.0, "day": "tue"}
    assert there["mean"] == pytest.approx(best["mean"])
    assert there["band"] == pytest.approx(best["band"])
    assert said("predict", *values, *HERE, "--t", 50)["t"] == 50.0
    assert len(said("front", *HERE)["front"]) >= 1
    drift = optimizer.drift()
    assert said("drift")["half_life"] == drift.half_life
    assert f"{drift.form}" in tvbo("drift", run)[1]
    assert " to " in tvbo("recommend", run, *HERE)[1]
    assert "best compromises" in tvbo("front", run, *HERE)[1]
    # Never the best outcome of another day.
    assert tvbo("recommend", run)[0] == 2
    assert run.read_bytes() == before


def test_a_run_without_names_or_a_model(tvbo, tmp_path):
    for name, recipe in (("a", recipes.tv_cgp_ucb), ("b", recipes.random_search)):
        options = {"context_bounds": [(0.0, 1.0)]} if name == "a" else {}
        with recipe(bounds=[(0.0, 1.0), (0.0, 2.0)], **options) as optimizer:
            optimizer.record(tmp_path / f"{name}.db")
    here = ("--context", "context_0=0.5")
    trial = json.loads(tvbo("ask", tmp_path / "a.db", *here, "--json")[1])
    assert (set(trial["parameters"]), trial["context"]) == (
        {"action_0", "action_1"},
        {"context_0": 0.5},
    )
    tvbo("tell", tmp_path / "a.db", 1, 0.5)
    there = ("action_0=0.5", "action_1=1.5", *here, "--json")
    found = json.loads(tvbo("predict", tmp_path / "a.db", *there)[1])
    assert found["parameters"] == {"action_0": 0.5, "action_1": 1.5}
    code, _, err = tvbo("recommend", tmp_path / "b.db")
    assert (code, err.count("\n")) == (2, 1)
    assert "RandomSearch" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "RUN", "--context", "laod=3", "--context", "day=mon"),
        ("ask", "RUN", "--context", "load=9", "--context", "day=mon"),
        ("ask", "RUN", "--context", "load=x", "--context", "day=mon"),
        ("ask", "RUN", "--context", "load=1", "--context", "day=mno"),
        ("ask", "RUN", "--context", "load"),
        ("ask", "RUN"),
        ("ask", "RUN", *HERE, "--t", "noon"),
        ("ask", "RUN", *HERE, "--key", ""),
        ("tell", "RUN", "9", "1.0"),
        ("tell", "RUN", "1", "nan"),
        ("tell", "RUN", "one", "1.0"),
        ("fail", "RUN", "9", "gone"),
        ("expire", "RUN", "9"),
        ("expire", "RUN"),
        ("expire", "RUN", "--older-than", "soon", "--t", "3"),
        ("predict", "RUN", "rate=0.1", *HERE),
        ("drift", "RUN", "--outcome", "other"),
        ("status", "nowhere.db"),
        ("ask", "nosuch://host/run", *HERE),
        ("new", "SPACE", "RUN"),
        ("new", "nowhere.toml", "other.db"),
        ("new", "SPACE", 245 * "a" + ".db"),
        ("new", "SPACE", 300 * "a" + ".db"),
        ("status", 300 * "a" + ".db"),
        ("backup", "RUN", "RUN"),
    ],
)
def test_bad_input_changes_nothing(tvbo, run, space, arguments, monkeypatch):
    asked(tvbo, run)
    monkeypatch.chdir(run.parent)
    given = [{"RUN": run, "SPACE": space}.get(each, each) for each in arguments]
    code, _out, err = tvbo(*given)
    assert code == 2
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1
    assert len(read_run(run).trials) == 1
    assert not (run.parent / "other.db").exists()


def test_another_space_is_refused(tvbo, run, space):
    assert asked(tvbo, run, "--space", space)["trial"] == 1
    space.write_text(SPACE.replace("[1, 8]", "[1, 9]"))
    code, _, err = tvbo("ask", run, *HERE, "--space", space)
    assert code == 2
    assert "8.0" in err
    assert "9.0" in err
    assert f"tvbo new {space} NEW.db --from {run}." in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("minimize", "minimise"),
        ("minimize = true", "version = 2"),
        ("[parameters]", "[parameter]"),
        ("log = true", "logg = true"),
        ('type = "float"', 'type = "flaot"'),
        ("bounds = [1, 8]", "bound = [1, 8]"),
        ("bounds = [1, 8]", "bounds = [1]"),
        ("bounds = [1, 8]", "bounds = [8, 1]"),
        ('["mon", "tue"]', '["mon", "mon"]'),
        ("version = {", "t = {"),
        ("[parameters]", "[parameters"),
        ("minimize = true", 'time_unit = "1x"'),
        ("minimize = true", "forgetting_rate = 2.0"),
        ('{ type = "fixed", value = 4 }', "4"),
        ('{ type = "fixed", value = 4 }', "[1, 2, 3]"),
        ('{ type = "fixed", value = 4 }', "[2, 1]"),
        ('{ type = "fixed", value = 4 }', 2_000 * "[" + 2_000 * "]"),
        ("version = {", "version" + 2_000 * ".a" + " = {"),
        (", value = 4", ""),
        ("log = true", 'log = "no"'),
        ('values = ["mon", "tue"]', 'values = "mon"'),
        ("bounds = [1, 8]", "bounds = [1.5, 8]"),
        ("minimize = true", 'minimize = "no"'),
    ],
)
def test_bad_space_files(old, new):
    assert old in SPACE
    with pytest.raises(SpaceError):
        optimizer_of(SPACE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("x = [0.0, 1.0]", 'x = { type = "float", bounds = [0.0, 1.0] }'),
        ("x = [1, 8]", 'x = { type = "integer", bounds = [1, 8] }'),
        ('x = ["a", "b"]', 'x = { type = "category", values = ["a", "b"] }'),
        ('x = { type = "bool" }', 'x = { type = "category", values = [false, true] }'),
    ],
)
def test_short_forms_of_parameters(short, full):
    one, two = (optimizer_of(f"[parameters]\n{text}\n") for text in (short, full))
    assert one.search_space.parameters == two.search_space.parameters


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ("[0, 100]", (0.0, 100.0)),
        ("{ max = 100 }", (-math.inf, 100.0)),
        ("{ min = 0.0, max = 100 }", (0.0, 100.0)),
    ],
)
def test_forms_of_limits(given, limits):
    text = f"[parameters]\nx = [0.0, 1.0]\n[constraints]\nlatency = {given}\n"
    assert optimizer_of(text).goals.limits == ((1, *limits),)


@pytest.mark.parametrize(
    "given", ["5", "[0]", "[1, 0]", "{}", "{ mx = 1 }", "{ max = 1, upper = 2 }"]
)
def test_bad_limits(given):
    with pytest.raises(SpaceError) as refused:
        optimizer_of(f"[parameters]\nx = [0.0, 1.0]\n[constraints]\nlatency = {given}\n")
    assert "latency" in str(refused.value)


def test_times_of_the_clock_and_given_ones(tvbo, tmp_path):
    space, run = tmp_path / "SPACE.toml", tmp_path / "run.db"
    units = 'time_unit = "1h"\ntime_zone = "UTC"\n[parameters]\n'
    space.write_text(units + 'x = { type = "float", bounds = [0, 1] }\n')
    tvbo("new", space, run)
    _, out, _ = tvbo("ask", run, "--t", "2026-01-31T12:00+02:00", "--json")
    assert json.loads(out)["t"] == "2026-01-31 10:00:00+00:00"
    for wrong, message in (("2026-01-31T12:00", "with a time zone"), ("noon", "Expected a time")):
        code, _, err = tvbo("ask", run, "--t", wrong)
        assert code == 2
        assert message in err
    _, out, _ = tvbo("ask", run, "--json")
    assert json.loads(out)["t"] > "2026-02"


def test_a_time_that_a_wrong_clock_gives(tvbo, tmp_path):
    space, run = tmp_path / "SPACE.toml", tmp_path / "run.db"
    space.write_text('time_unit = "1h"\ntime_zone = "UTC"\n[parameters]\nx = [0.0, 1.0]\n')
    tvbo("new", space, run)
    for hour in (8, 10, 12):
        assert tvbo("ask", run, "--t", f"2026-01-31T{hour:02d}:00Z")[0] == 0
    # Within 100 gaps of two hours, and not.
    assert tvbo("ask", run, "--t", "2026-02-08T11:00Z", "--key", "request 4")[0] == 0
    late = ("ask", run, "--t", "2027-01-31T12:00Z")
    assert tvbo(*late, "--key", "request 4")[1].startswith("trial 4:")
    code, _, err = tvbo(*late)
    assert (code, err.count("\n")) == (2, 1)
    assert "2026-02-08 11:00:00" in err
    assert tvbo(*late, "--force")[0] == 0


def test_a_backup_while_it_is_open(tvbo, run, tmp_path):
    with Optimizer.open(run) as optimizer:
        optimizer.ask(context={"load": 1.0, "day": "mon"})
        code, _out, err = tvbo("backup", run, tmp_path / "copy.db")
        assert (code, err) == (0, "")
        optimizer.ask(context={"load": 1.0, "day": "mon"})
    # The copy goes on as the run does.
    third = asked(tvbo, tmp_path / "copy.db")
    assert third["trial"] == 2
    assert asked(tvbo, run)["trial"] == 3
    assert tvbo("backup", run, tmp_path / "copy.db")[0] == 0
    assert asked(tvbo, tmp_path / "copy.db")["trial"] == 4


def test_a_command_waits_for_another(tvbo, run):
    with closing(sqlite3.connect(run, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        code, _, err = tvbo("ask", run, *HERE, "--wait", "0.1")
        assert code == 75
        assert str(run) in err
        assert "0.1 s" in err
        assert err.count("\n") == 1
        other.execute("ROLLBACK")
    assert asked(tvbo, run)["trial"] == 1


def test_the_longest_name(tvbo, space, tmp_path):
    run = tmp_path / (220 * "a" + ".db")
    assert tvbo("new", space, run)[0] == 0
    assert asked(tvbo, run)["trial"] == 1


def test_a_long_reason_is_cut(tvbo, run):
    asked(tvbo, run)
    assert tvbo("fail", run, 1, 1_000_000 * "a")[0] == 0
    code, _, err = tvbo("tell", run, 1, 0.5)
    assert code == 2
    assert len(err) < 1_000
    [reason] = read_run(run).to_frame().reason
    assert len(reason) == 10_000
    code, _, err = tvbo("ask", run, *HERE, "--key", 1_000_000 * "a")
    assert code == 2
    assert len(err) < 1_000
