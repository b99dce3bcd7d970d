"""``tvbo new --from``: a run that goes on by a changed SPACE."""

import json

import pandas as pd
import pytest

from tvbo import recipes
from tvbo.cli.space_file import optimizer_of
from tvbo.storage import read_run

TEXT = """
minimize = true

[parameters]
rate = { type = "float", bounds = [1e-4, 1.0], log = true }
layers = { type = "integer", bounds = [1, 8] }
rule = { type = "category", values = ["adam", "sgd", "rms"] }
version = { type = "fixed", value = 4 }

[contexts]
load = { type = "float", bounds = [0.0, 5.0] }
"""
SEVERAL = """
time_unit = "1h"
time_zone = "UTC"
[parameters]
x = { type = "float", bounds = [0.0, 1.0] }
[constraints]
latency = { max = 100.0 }
"""


@pytest.fixture
def old(tmp_path):
    """A run with twelve outcomes, a failure and two open trials."""
    path = tmp_path / "old.db"
    optimizer = optimizer_of(TEXT)
    optimizer.record(path)
    for number in range(15):
        trial = optimizer.ask(context={"load": number % 5})
        if number < 12:
            optimizer.tell(trial, trial.parameters["layers"] - 3.5)
        elif number == 12:
            optimizer.fail(trial, "out of memory")
    optimizer.close()
    return path


def table(run):
    return read_run(run).to_frame()


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def begin(tvbo, folder, text, old, *options):
    (folder / "NEW.toml").write_text(text)
    code, out, err = tvbo("new", folder / "NEW.toml", folder / "new.db", "--from", old, *options)
    return code, " ".join(out.split()), err


def test_the_same_space(tvbo, tmp_path, old):
    before = old.read_bytes()
    code, out, err = begin(tvbo, tmp_path, TEXT, old)
    assert (code, err) == (0, "")
    assert f"took over 12 outcomes of {old}" in out
    assert "trials without an outcome are not taken over: 1 failed" in out
    assert f"the open trial 14 of {old} is trial 13 here" in out
    assert f"the open trial 15 of {old} is trial 14 here" in out
    assert old.read_bytes() == before
    one, two = table(old), table(tmp_path / "new.db")
    names = ["rate", "layers", "rule", "version", "load", "state", "outcome"]
    kept = one[one.state != "failed"]
    pd.testing.assert_frame_equal(kept[names].reset_index(drop=True), two[names], check_exact=True)
    assert two.how.tolist() == ["attached"] * 14
    # Rounds go on: the next one, round 1 here, comes one round after the fifteenth there.
    assert two.t.tolist() == [t - 15 for t in kept.t]
    here = ("--context", "load=3", "--json")
    code, out, _ = tvbo("ask", tmp_path / "new.db", *here)
    trial = json.loads(out)
    assert (code, trial["trial"], trial["t"]) == (0, 15, 1.0)
    assert tvbo("tell", tmp_path / "new.db", 13, 0.5)[0] == 0
    status = json.loads(tvbo("status", tmp_path / "new.db", "--json")[1])
    assert (status["told"], status["open"]) == (13, 2)
    # Nothing else is left behind.
    assert names_in(tmp_path) == {"NEW.toml", "new.db", "old.db"}


def test_narrower_and_wider_and_a_fixed_value(tvbo, tmp_path, old):
    text = (
        TEXT.replace("[1, 8]", "[3, 20]")
        .replace(', "rms"]', ', "lion"]')
        .replace("value = 4", "value = 5")
    )
    code, out, err = begin(tvbo, tmp_path, "seed = 3\nbeta = 2.0\n" + text, old)
    assert (code, err) == (0, "")
    trials = table(old)
    trials = trials[trials.state == "told"]
    by_layers = (trials.layers < 3).sum()
    by_rule = ((trials.rule == "rms") & (trials.layers >= 3)).sum()
    assert by_layers > 0
    assert by_rule > 0
    told = 12 - by_layers - by_rule
    assert f"took over {told} outcomes" in out
    assert f"left out {by_layers + by_rule} outcomes that are not in the new space" in out
    assert f"{by_layers} by layers" in out
    assert f"{by_rule} by rule" in out
    assert "version was 4: the outcomes count as if it had been 5" in out
    new = table(tmp_path / "new.db")
    assert (new.state == "told").sum() == told
    assert set(new.version) == {5}
    code, out, _ = tvbo("ask", tmp_path / "new.db", "--context", "load=3", "--json")
    assert json.loads(out)["parameters"]["rule"] != "rms"


def test_a_parameter_more(tvbo, tmp_path, old):
    text = TEXT.replace("rule =", 'size = { type = "category", values = ["s", "m"] }\nrule =')
    code, _, err = begin(tvbo, tmp_path, text, old)
    assert code == 2
    assert f"Expected --default size=VALUE, the value of size in {old}" in err
    code, out, _ = begin(tvbo, tmp_path, text, old, "--default", "size=m")
    assert code == 0
    assert "took over 12 outcomes" in out
    assert set(table(tmp_path / "new.db")["size"]) == {"m"}


def test_times_and_several_outcomes(tvbo, tmp_path):
    old = tmp_path / "old.db"
    optimizer = optimizer_of(SEVERAL)
    optimizer.record(old)
    start = pd.Timestamp("2026-11-24", tz="UTC")
    for number in range(6):
        trial = optimizer.ask(start + pd.Timedelta(hours=number))
        optimizer.tell(trial, {"outcome": number, "latency": 90.0 + number})
    optimizer.close()
    code, out, err = begin(tvbo, tmp_path, SEVERAL.replace("100.0", "80.0"), old)
    assert (code, err) == (0, "")
    assert "took over 6 outcomes" in out
    names = ["t", "x", "outcome", "latency"]
    pd.testing.assert_frame_equal(table(old)[names], table(tmp_path / "new.db")[names])
    (tmp_path / "new.db").unlink()
    for wrong, message in (
        (SEVERAL.replace("1h", "1d"), "Expected the time_unit and time_zone of"),
        (SEVERAL.replace("latency", "memory"), "Expected the outcomes of"),
        ("minimize = true\n" + SEVERAL, "Expected the outcomes to minimize of"),
    ):
        code, _, err = begin(tvbo, tmp_path, wrong, old)
        assert code == 2
        assert message in err


@pytest.mark.parametrize(
    ("old_text", "new_text", "options"),
    [
        ("rate =", "speed =", ()),
        ("load =", "weight =", ()),
        ('"integer"', '"float"', ()),
        ("minimize = true", "", ()),
        ("minimize = true", 'minimize = true\ntime_unit = "1h"', ()),
        ("", "", ("--default", "rate=0.1")),
        ("rule =", 'size = { type = "integer", bounds = [1, 4] }\nrule =', ("--default", "size=9")),
    ],
)
def test_what_is_not_safe_is_refused(tvbo, tmp_path, old, old_text, new_text, options):
    code, _, err = begin(tvbo, tmp_path, TEXT.replace(old_text, new_text, 1), old, *options)
    assert code == 2
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1
    assert names_in(tmp_path) == {"NEW.toml", "old.db"}


def test_a_file_that_exists_and_a_default_alone(tvbo, tmp_path, old):
    before = old.read_bytes()
    (tmp_path / "NEW.toml").write_text(TEXT)
    code, _, err = tvbo("new", tmp_path / "NEW.toml", old, "--from", old)
    assert code == 2
    assert "Expected a new file" in err
    assert old.read_bytes() == before
    code, _, err = tvbo("new", tmp_path / "NEW.toml", tmp_path / "new.db", "--default", "a=1")
    assert code == 2
    assert "Expected --from with --default" in err
    assert not (tmp_path / "new.db").exists()


def test_a_run_without_names_is_refused(tvbo, tmp_path):
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
    optimizer.record(tmp_path / "old.db")
    code, _, err = begin(tvbo, tmp_path, TEXT, tmp_path / "old.db")
    assert (code, err.count("\n")) == (2, 1)
    assert names_in(tmp_path) == {"NEW.toml", "old.db"}
