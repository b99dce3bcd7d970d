"""Runs whose workers, scheduler or whole process group are killed: no trial is lost, none twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from evaluation.watched import Watched, go, processes

from tvbo.evaluation import History
from tvbo.evaluation.dask_cluster import dask_executor

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def evaluations():
    with pytest.MonkeyPatch.context() as patch:
        # Workers are given the path of this process.
        patch.syspath_prepend(HERE)
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield pytest.importorskip("evaluations")


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@contextmanager
def dask_processes(folder):
    """A scheduler and two workers, each a process: the scheduler's, and an executor on them."""
    distributed = pytest.importorskip("distributed")
    file = folder / f"scheduler-{len(list(folder.iterdir()))}.json"
    command = [sys.executable, "-m", "dask"]
    started = [
        subprocess.Popen([*command, *more, "--no-dashboard"], stderr=subprocess.DEVNULL)
        for more in (
            ["scheduler", "--port", "0", "--scheduler-file", file],
            ["worker", "--nworkers", "2", "--nthreads", "1", "--scheduler-file", file],
        )
    ]
    try:
        wait_for(file)
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        with dask_executor(address) as executor:
            yield started[0], executor
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def finish(make, of, optimizer, history):
    """Have 100 trials evaluated, on another executor where one breaks; return how often it did."""
    broken = 0
    while history.num_ended < 100:
        try:
            with make() as (process, executor):
                go(of(process), optimizer, executor, 100 - history.num_ended, history=history)
        except BrokenExecutor:
            broken += 1
    assert history.counts == {"told": 100, "open": 0}
    told = Counter(call[1] for call in optimizer.calls if call[0] == "tell")
    assert told == dict.fromkeys(range(1, 101), 1)
    assert (optimizer.trial_log.num_told, optimizer.open_trials) == (100, ())
    return broken


def test_killed_processes(evaluations, tmp_path):
    @contextmanager
    def make():
        with processes(4) as executor:
            yield None, executor

    function = partial(evaluations.kill, str(tmp_path))
    assert finish(make, lambda _: function, Watched(), History()) == 5


def test_a_killed_scheduler(evaluations, tmp_path):
    def of(scheduler):
        return partial(evaluations.kill_another, scheduler.pid, str(tmp_path / "killed"))

    assert finish(lambda: dask_processes(tmp_path), of, Watched(), History()) == 1


@pytest.mark.parametrize("kind", ["processes", "Dask"])
def test_ctrl_c_to_the_group(kind, tmp_path):
    run = subprocess.Popen(
        [sys.executable, HERE / "interrupted_run.py", kind, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    wait_for(tmp_path / "begun")
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert out.strip() in ("KeyboardInterrupt", "BrokenExecutor")
