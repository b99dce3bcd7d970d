"""A tuner behind the command line, in processes that are killed: nothing is lost or told twice."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ["service_process", "service_stress"]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module("service_process")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_killed_commands_lose_nothing(benchmark, tmp_path):
    world, counts, wrong = benchmark.play(18, tmp_path)
    assert wrong == []
    assert sum(counts.values()) == 18
    assert counts["told"] == 3
    assert world.num_killed <= 2


@pytest.mark.slow
def test_the_check_sees_what_is_wrong(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "KILLED", {})
    world, _, wrong = benchmark.play(7, tmp_path)
    assert wrong == []
    first = world.by_hour[1]
    world.ended[first] = {"revenue": -1.0, "latency": -1.0}
    assert len(benchmark.check(world, tmp_path / "run.db")) == 1
    world.by_hour[8] = 8
    assert len(benchmark.check(world, tmp_path / "run.db")) == 2
