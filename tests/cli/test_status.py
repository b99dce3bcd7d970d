"""``tvbo status``: a run by its rows."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import pandas as pd
import pytest

from tvbo.cli.space_file import optimizer_of
from tvbo.service.status import status as status_of
from tvbo.storage import read_run

BOX = '[parameters]\nx = { type = "float", bounds = [0.0, 1.0] }\n'
CONTEXTS = BOX + '[contexts]\nload = { type = "float", bounds = [0.0, 5.0] }\n'
SEVERAL = BOX + "[constraints]\nlatency = { max = 100.0 }\n"
UNITS = 'time_unit = "1h"\ntime_zone = "UTC"\n'
NOW = pd.Timestamp("2026-11-24 22:00", tz="UTC")


def begun(text, path):
    optimizer = optimizer_of(text)
    optimizer.record(path)
    return optimizer


def status(tvbo, run):
    code, out, err = tvbo("status", run, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_an_empty_run(tvbo, tmp_path):
    begun(BOX, tmp_path / "run.db").close()
    assert status(tvbo, tmp_path / "run.db")["told"] == 0
    assert tvbo("status", tmp_path / "run.db")[0] == 0


def test_the_newest_outcomes(tvbo, tmp_path):
    run = tmp_path / "run.db"
    optimizer = begun("minimize = true\n" + BOX, run)
    outcomes = []
    for number in range(26):
        trial = optimizer.ask()
        outcomes.append((trial.parameters["x"] - 0.3 - number / 200) ** 2 + 0.02 * (number % 3))
        optimizer.tell(trial, outcomes[-1])
    optimizer.fail(optimizer.ask(), "a crash")
    opened = optimizer.ask()
    before = run.read_bytes()
    found = status(tvbo, run)
    counts = {name: found[name] for name in ("told", "open", "failed", "in_the_model")}
    assert counts == {"told": 26, "open": 1, "failed": 1, "in_the_model": 26}
    [shown] = found["open_trials"]
    assert (shown["trial"], shown["x"]) == (28, opened.parameters["x"])
    [newest] = found["newest"]
    assert (newest["told"], newest["since"]) == (20, 7.0)
    assert newest["mean"] == pytest.approx(sum(outcomes[6:]) / 20)
    # By what was predicted at the asks, in the user's units.
    asks = read_run(run).predictions
    judged = [number for number in range(7, 27) if asks[number]["is_fitted"]]
    errors = [outcomes[number - 1] - asks[number]["mean"] for number in judged]
    assert newest["predicted"] == len(judged) > 10
    assert newest["mean_error"] == pytest.approx(sum(errors) / len(judged))
    spreads = [asks[n]["variance"] + asks[n]["noise_variance"] for n in judged]
    inside = sum(e**2 <= 1.96**2 * spread for e, spread in zip(errors, spreads, strict=True))
    assert newest["in_band"] == inside
    drift = optimizer.drift()
    assert (found["drift"], found["half_life"]) == (drift.form, pytest.approx(drift.half_life))
    assert found["hyperparameters"]["lengthscale_x"] > 0
    assert "process" in found["changed_by"]
    words = " ".join(tvbo("status", run)[1].replace("│", " ").split())
    assert f"20 7 {newest['mean']:.6g} {len(judged)} {inside} {newest['mean_error']:.6g}" in words
    assert run.read_bytes() == before


def test_the_last_week_of_several_outcomes(tvbo, tmp_path):
    run = tmp_path / "run.db"
    optimizer = begun(UNITS + SEVERAL, run)
    for number in range(30):
        x = number * 0.37 % 1
        trial = optimizer.attach({"x": x}, NOW - pd.Timedelta(hours=10 * (30 - number)))
        optimizer.tell(trial, {"outcome": -((x - 0.3) ** 2), "latency": 90 + 20 * x})
    rows = read_run(run)
    found, latency = status_of(rows, NOW.to_pydatetime())["last_week"]
    # Of the 16 trials within 168 hours, none of which was asked for.
    assert (found["told"], found["since"]) == (16, "2026-11-18T06:00:00+00:00")
    latencies = [90 + 20 * (number * 0.37 % 1) for number in range(14, 30)]
    assert (latency["outcome"], latency["mean"]) == ("latency", pytest.approx(sum(latencies) / 16))
    assert status_of(rows, datetime(2027, 3, 1, tzinfo=UTC))["last_week"] == []
    assert tvbo("status", run)[0] == 0


def test_before_there_is_a_fit(tvbo, tmp_path):
    run = tmp_path / "run.db"
    optimizer = begun(CONTEXTS, run)
    for number in range(3):
        trial = optimizer.ask(float(number), {"load": 1.0})
        optimizer.tell(trial, float(number))
    found = status(tvbo, run)
    assert found["newest"] == [{"outcome": "outcome", "told": 3, "since": 0.0, "mean": 1.0}]
    assert "half_life" not in found


@pytest.mark.parametrize(
    "forged",
    [
        "run SET changed_at = 1e300",
        "run SET labels = '{}'",
        "trials SET predicted = '7'",
        """trials SET predicted = '{"mean": "high"}'""",
        "trials SET parameters = '[1]'",
        "trials SET t = 'noon'",
    ],
)
def test_a_forged_run_is_one_line(tvbo, tmp_path, forged):
    run = tmp_path / "run.db"
    optimizer = begun(BOX, run)
    optimizer.tell(optimizer.ask(), 0.5)
    with closing(sqlite3.connect(run)) as connection, connection:
        connection.execute(f"UPDATE {forged}")
    code, out, err = tvbo("status", run)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("arguments", [["--help"], ["status", "RUN"], ["runs", "show", "RUN"]])
def test_what_takes_long_to_import_is_not(tmp_path, arguments):
    run = tmp_path / "run.db"
    begun(BOX, run).ask()
    arguments = [str(run) if each == "RUN" else each for each in arguments]
    late = ["torch", "numpy", "pandas", "matplotlib", "fastapi"]
    script = (
        "import sys\nfrom tvbo.cli import main\n"
        f"try:\n    main({arguments})\n"
        f"finally:\n    print([name for name in {late} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == "[]", shown.stderr
