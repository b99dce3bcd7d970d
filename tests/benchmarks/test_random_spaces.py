"""Spaces of any mix of parameters are asked, recommend and are resumed."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tvbo import recipes

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "random_spaces", raising=False)
    yield import_module("random_spaces")
    sys.modules.pop("random_spaces", None)


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_a_random_space(benchmark, seed, tmp_path):
    benchmark.play(seed, 7, tmp_path)


@pytest.mark.parametrize("first", [True, "on"])
def test_floats_with_two_values_and_a_category(first):
    """BoTorch's search has other columns than the model, whose categories are zeros and ones."""
    space = {"x": (0.0, 1.0), "flag": [first, "off"], "c": ["a", "b", "c"]}
    optimizer = recipes.tv_gp_ucb(bounds=space, initial=2)
    for _ in range(4):
        trial = optimizer.ask()
        found = trial.parameters
        optimizer.tell(trial, found["x"] + (found["c"] == "b"))
        assert optimizer.recommend().parameters["c"] in space["c"]
