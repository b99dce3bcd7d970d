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
def test_killed_commands_lose_nothing_and_the_check_sees_what_is_wrong(benchmark, tmp_path):
    world, counts, wrong = benchmark.play(10, tmp_path)
    assert wrong == []
    assert sum(counts.values()) == 10
    assert world.num_killed <= 2
    told = next(hour for hour, trial in world.by_hour.items() if world.ended.get(trial))
    world.ended[world.by_hour[told]] = {"revenue": -1.0, "latency": -1.0}
    assert len(benchmark.check(world, tmp_path / "run.db")) == 1
    world.by_hour[11] = 11
    assert len(benchmark.check(world, tmp_path / "run.db")) == 2
