"""``kill -9`` at any moment, and at each operation on files."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from killed_runs import check, killed
from run_cases import made, play

from tvbo.optimizers import Optimizer

LONGEST = 0.2
"""Seconds that a process lives, at most, after its first words."""

HERE = Path(__file__).parent


@pytest.mark.slow_cases("100")
@pytest.mark.parametrize("kills", [4, 100])
def test_what_was_acknowledged_survives_kills(run, kills):
    # What is imported at first use is imported before the processes are forked.
    play(made("streaming"), 2)
    said = []
    for number in range(kills):
        said += killed(run, random.uniform(0, LONGEST), 5 * (number % 3))
        check(run, said, number + 1)
    assert len(said) >= 5 * (kills - 1)
    assert Optimizer.open(run).num_trials > 0


@pytest.fixture(scope="module")
def killing_library(tmp_path_factory):
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("there is no gcc")
    library = tmp_path_factory.mktemp("library") / "kill_points.so"
    source = HERE / "kill_points.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def killed_at_each_operation(library, call: str) -> tuple[int, int]:
    """Gives how many runs went on after it, and how many did not."""
    path = os.pathsep.join((str(HERE.parent), *sys.path))
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, HERE / "kill_points.py", call],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    went_on, lost = done.stdout.split()
    return int(went_on), int(lost)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["create", "ask", "tell"])
def test_a_kill_at_any_operation_on_files(killing_library, call):
    went_on, lost = killed_at_each_operation(killing_library, call)
    assert lost == 0
    assert went_on > 25


@pytest.mark.slow
def test_power_cuts(killing_library):
    """A journal that is torn as well: nothing is lost but the newest change, or it is named."""
    went_on, _ = killed_at_each_operation(killing_library, "torn")
    assert went_on > 20
