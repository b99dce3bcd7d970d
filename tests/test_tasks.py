"""Tasks of new users, each as short as the guide says it is, done."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent / "tasks"
LINES = 25


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_it_is_short(path):
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= LINES


def test_record_and_resume():
    optimizer = run("record_and_resume")["optimizer"]
    assert (optimizer.num_trials, len(optimizer.open_trials)) == (9, 0)
    assert optimizer.recommend().parameters["n"] <= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimization failed")  # A line search may end early.
def test_own_botorch_loop():
    with torch.random.fork_rng():
        found = run("own_botorch_loop")
    assert len(found["rows"]) == 14
    # The peak is at 0.56 by then.
    assert found["outcomes"][-3:].max() > -0.05


@pytest.mark.slow
def test_late_outcomes_of_variants():
    found = run("late_outcomes_of_variants")
    assert found["optimizer"].trial_log.num_told == 38
    assert len(found["optimizer"].open_trials) == 2
    assert found["best"].parameters == {"variant": "blue"}


@pytest.mark.slow
def test_warm_start():
    found = run("warm_start")
    assert 100 < found["optimizer"].model_size <= 150
    values = found["trial"].parameters
    assert abs(values["pressure"] - 4) < 1.5
    assert abs(values["speed"] - 12) < 5


def test_mixed_parameters(tmp_path):
    found = run("mixed_parameters")
    assert found["history"].reward[-8:].mean() < 1.0
    assert (tmp_path / "history.csv").read_text().startswith("trial,t,rate,layers,rule,reward")


@pytest.mark.slow
def test_latency_constraint():
    found = run("latency_constraint")
    best, load = found["best"], 1 + 0.2 * math.sin(2.5)
    assert best.feasibility > 0.9
    product = best.parameters["batch"] * best.parameters["share"]
    # The limit is at 35 divided by what the load takes.
    assert load * (30 + 2 * product) < 102
    assert product > 0.7 * (100 / load - 30) / 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimization failed")  # A line search may end early.
def test_two_objectives():
    front = run("two_objectives")["front"]
    assert len(front) > 3
    assert front["mean"].is_monotonic_decreasing
    assert front["cost_mean"].is_monotonic_decreasing


@pytest.mark.slow
def test_cron_job(tmp_path):
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", FOLDER / "cron_job.sh"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout.splitlines()[-1])
    assert (status["told"], status["open"]) == (3, 0)
