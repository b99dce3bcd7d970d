"""What is chosen does not hang on rounding, threads or the instructions of the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from choices import BOX, GRID, ask_once, given, given_on_a_grid, learned, play
from rounding import OtherRounding

TOLERANCE = 1e-6
"""Of a coordinate of a box that is two units wide."""


def twice(choose):
    """What is chosen on this CPU and on one that rounds otherwise."""
    usual = choose()
    with OtherRounding(seed=0):
        return usual, choose()


@pytest.mark.parametrize("name", given_on_a_grid())
def test_a_symmetric_grid(name):
    make = given_on_a_grid()[name]
    usual, other = twice(lambda: play(make(), rounds=40))
    assert usual == other


@pytest.mark.parametrize("name", given({"bounds": BOX}))
def test_a_box(name):
    make = given({"bounds": BOX})[name]
    usual, other = twice(lambda: ask_once(make(), on_grid=False))
    assert usual == pytest.approx(other, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", learned({}))
@pytest.mark.parametrize("on_grid", [True, False], ids=["grid", "box"])
def test_learned_hyperparameters(name, on_grid):
    make = learned({"choices": GRID} if on_grid else {"bounds": BOX})[name]
    usual, other = twice(lambda: ask_once(make(), on_grid))
    assert usual == pytest.approx(other, abs=0 if on_grid else TOLERANCE)


SETTINGS = {
    **{f"rounding {seed}": {"TVBO_TEST_ROUNDING": str(seed)} for seed in range(5)},
    "other instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "two threads": {"TVBO_TEST_THREADS": "2", "OMP_NUM_THREADS": "2"},
}


def chosen(settings):
    """What every recipe chooses in a process of its own."""
    script = Path(__file__).parent / "choices.py"
    env = {key: value for key, value in os.environ.items() if not key.startswith("TVBO_TEST_")}
    run = subprocess.run(
        [sys.executable, str(script), "--rounds", "200"],
        env={**env, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def usual():
    return chosen({})


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_recipe_in_every_setting(usual, settings):
    """200 rounds on a symmetric grid; one ask where a box is searched or something is learned."""
    other = chosen(settings)
    for kind, runs in usual.items():
        tolerance = 0 if kind.endswith("grid") else TOLERANCE
        for name, choices in runs.items():
            assert choices == pytest.approx(other[kind][name], abs=tolerance), (kind, name)
