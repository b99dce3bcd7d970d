"""``tvbo status``: recent outcomes."""

import json

import pandas as pd
import pytest

from tvbo.cli.space_file import SPACE, optimizer_of
from tvbo.models.scale import outcome_scale
from tvbo.optimizers import Optimizer
from tvbo.storage.create import start_journal

BOX = '[parameters]\nx = { type = "float", bounds = [0.0, 1.0] }\n'
CONTEXTS = BOX + '[contexts]\nload = { type = "float", bounds = [0.0, 5.0] }\n'
SEVERAL = BOX + "[constraints]\nlatency = { upper = 100.0 }\n"
UNITS = 'time_unit = "1h"\ntime_zone = "UTC"\n'
NOW = pd.Timestamp("2026-11-24 22:00", tz="UTC")


def begun(text, path):
    optimizer = optimizer_of(text)
    start_journal(optimizer, path, {SPACE: text})
    return optimizer


def status(tvbo, run, *options):
    code, out, err = tvbo("status", run, "--json", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_an_empty_run(tvbo, tmp_path):
    begun(BOX, tmp_path / "run.db").close()
    code, out, _ = tvbo("status", tmp_path / "run.db")
    assert code == 0
    assert "--context" not in out


def test_the_newest_outcomes(tvbo, tmp_path):
    run, text = tmp_path / "run.db", "minimize = true\n" + BOX
    optimizer = begun(text, run)
    outcomes = []
    for number in range(26):
        x = number * 0.37 % 1
        outcomes.append((x - 0.3 - number / 200) ** 2 + 0.02 * (number % 3))
        optimizer.tell(optimizer.attach({"x": x}, float(number)), outcomes[-1])
    optimizer.close()
    found = status(tvbo, run)
    with Optimizer.open(run, like=optimizer_of(text), read_only=True) as again:
        drift = again.drift()
    assert (found["drift"], found["half_life"]) == (drift.form, drift.half_life)
    assert found["half_life_interval"] == [*drift.half_life_interval]
    assert found["forgetting_rate"] == drift.forgetting_rate
    newest = found["newest"]
    assert (newest["told"], newest["since"], newest["predicted"]) == (20, 6.0, 20)
    assert newest["mean"] == pytest.approx(sum(outcomes[6:]) / 20)
    with Optimizer.open(run, like=optimizer_of(text), read_only=True) as again:
        best = again.recommend()
        mean, variance = again.model.one_step_ahead()
        shift, scale = outcome_scale(again.model)
        mean, variance = shift + scale * mean, scale**2 * variance
        then = again.model.posterior(again.layout.rows(best.X, 6.0)).mean.item()
    # The model has the negatives.
    errors = [y + m for y, m in zip(outcomes, mean.tolist(), strict=True)][6:]
    bands = [1.96 * v**0.5 for v in variance.tolist()][6:]
    assert newest["mean_error"] == pytest.approx(sum(errors) / 20)
    inside = sum(abs(e) <= b for e, b in zip(errors, bands, strict=True))
    assert newest["in_band"] == inside
    assert newest["change"] == pytest.approx(best.mean + then, abs=1e-9)
    words = " ".join(tvbo("status", run)[1].replace("│", " ").split())
    assert f"20 6 {newest['mean']:.6g} 20 {inside} {newest['mean_error']:.6g}" in words


def test_the_last_week_of_several_outcomes(tvbo, tmp_path):
    run = tmp_path / "run.db"
    optimizer = begun(UNITS + SEVERAL, run)
    for number in range(30):
        x = number * 0.37 % 1
        trial = optimizer.attach({"x": x}, NOW - pd.Timedelta(hours=10 * (30 - number)))
        optimizer.tell(trial, {"outcome": -((x - 0.3) ** 2), "latency": 90 + 20 * x})
    optimizer.close()
    found = status(tvbo, run, "--t", NOW)["last_week"]
    # Of the 16 trials within 168 hours.
    assert (found["told"], found["since"]) == (16, "2026-11-17 22:00:00+00:00")
    latencies = [90 + 20 * (number * 0.37 % 1) for number in range(14, 30)]
    assert found["latency"]["mean"] == pytest.approx(sum(latencies) / 16)
    for name in ("outcome", "latency"):
        assert found[name]["predicted"] == 16
        assert 0 <= found[name]["in_band"] <= 16
        assert {"mean_error", "change"} < set(found[name])
    assert "latency" in tvbo("status", run, "--t", NOW)[1]
    assert status(tvbo, run, "--t", "2027-03-01T00:00Z")["last_week"] == {"told": 0}
    assert tvbo("status", run, "--t", "2027-03-01T00:00Z")[0] == 0


def test_few_outcomes_and_a_context_that_is_not_given(tvbo, tmp_path):
    run = tmp_path / "run.db"
    optimizer = begun(CONTEXTS, run)
    assert "newest" not in status(tvbo, run)
    for number in range(3):
        trial = optimizer.ask(float(number), {"load": 1.0})
        optimizer.tell(trial, float(number))
    optimizer.close()
    # Before there is enough to learn hyperparameters from, nothing is predicted.
    assert status(tvbo, run)["newest"] == {"told": 3, "since": 0.0, "mean": 1.0}
    found = status(tvbo, run, "--context", "load=2")["newest"]
    assert set(found) == {"told", "since", "mean", "change"}
    assert "3 0 1" in " ".join(tvbo("status", run)[1].replace("│", " ").split())
