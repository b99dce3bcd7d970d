"""Runs of 100 trials whose objective, workers, scheduler or process group are lost.

Every trial is accounted for, none is told twice, and the run ends or says why.
"""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, CancelledError, Future
from concurrent.futures import ThreadPoolExecutor as Threads
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from evaluation.watched import Watched, check_accounts, go, processes, square, statuses
from evaluation.wrong import (
    REASONS,
    dies,
    goes_wrong,
    kill,
    kill_another,
    rests,
)

from tvbo.evaluation import History, dask_executor

TESTS = Path(__file__).parent.parent
EVEN = {i: "told" if i % 2 else "failed" for i in range(1, 101)}
FEW = {i: "failed" if i % 20 == 10 else "told" for i in range(1, 101)}


@pytest.fixture(autouse=True, scope="module")
def path():
    """Workers import the objectives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    import dask
    from distributed.utils import get_mp_context

    # Forked from one process that has imported everything: four times the import takes long.
    method = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(method):
        get_mp_context().set_forkserver_preload(["distributed", "tvbo.evaluation"])
        # The dashboard takes any port that is free.
        given = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
        with distributed.LocalCluster(n_workers=4, processes=True, **given) as made:
            yield made


@contextmanager
def workers(kind, request):
    if kind == "Dask":
        with dask_executor(request.getfixturevalue("cluster").scheduler_address) as executor:
            yield executor
    else:
        with {"threads": Threads, "processes": processes}[kind](4) as executor:
            yield executor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes", "Dask"])
def test_whatever_an_objective_does_fails_its_trial(kind, request):
    with workers(kind, request) as executor:
        for what in REASONS:
            optimizer = Watched()
            history = go(partial(goes_wrong, what), optimizer, executor, 100, max_pending=8)
            assert statuses(history) == EVEN
            check_accounts(optimizer, history)


def finish(make, of, optimizer, history, on_break=lambda: None):
    """Have 100 trials evaluated, on another executor where one breaks; return how often it did."""
    broken = 0
    while history.num_ended < 100:
        try:
            with make() as (process, executor):
                go(of(process), optimizer, executor, 100 - history.num_ended, history=history)
        except BrokenExecutor:
            broken += 1
            check_accounts(optimizer, history)
            on_break()
    check_accounts(optimizer, history)
    return broken


@contextmanager
def pool():
    with processes(4) as executor:
        yield None, executor


@pytest.mark.slow
def test_an_objective_that_ends_its_process_each_time():
    optimizer, history = Watched(), History()

    def give_up():
        for trial in optimizer.open_trials:
            if trial.id % 20 == 10:
                optimizer.fail(trial, "ends its process")
                history.end(trial, "failed")

    assert finish(pool, lambda _: dies, optimizer, history, give_up) >= 5
    assert statuses(history) == FEW


@pytest.mark.slow
def test_an_objective_that_ends_its_worker_each_time(cluster):
    optimizer = Watched()
    with dask_executor(cluster.scheduler_address) as executor:
        history = go(dies, optimizer, executor, 100, max_pending=8)
    check_accounts(optimizer, history)
    lost = [i for i, status in statuses(history).items() if status == "failed"]
    # The scheduler also suspects the jobs that waited on a worker that died.
    assert {10, 30, 50, 70, 90} <= set(lost)
    assert all("KilledWorker" in history.round_of(i).reason for i in lost)


@pytest.mark.slow
def test_five_killed_processes(tmp_path):
    history = History()
    assert finish(pool, lambda _: partial(kill, str(tmp_path)), Watched(), history) == 5
    assert history.counts == {"told": 100, "open": 0}


@pytest.mark.slow
def test_five_killed_workers_lose_no_trial(cluster, tmp_path):
    optimizer = Watched()
    with dask_executor(cluster.scheduler_address) as executor:
        history = go(partial(kill, str(tmp_path)), optimizer, executor, 100, max_pending=8)
    assert len([*tmp_path.iterdir()]) == 5
    assert history.counts == {"told": 100, "open": 0}
    check_accounts(optimizer, history)


@pytest.mark.slow
@pytest.mark.parametrize(("num_lost", "error"), [(3, None), (4, BrokenExecutor)])
def test_results_that_dask_loses(num_lost, error, cluster):
    """The first jobs end as in a race of Dask: a worker died while its result was on the way."""
    with dask_executor(cluster.scheduler_address) as executor:

        class Losing(type(executor)):
            count = 0

            def submit(self, *args):
                self.count += 1
                if self.count > num_lost:
                    return super().submit(*args)
                future = Future()
                future.set_exception(ValueError("not enough values to unpack (expected 3, got 2)"))
                return future

        executor.__class__ = Losing
        optimizer, history = Watched(), History()
        with pytest.raises(error) if error else nullcontext():
            go(square, optimizer, executor, 5, 1, history=history)
    assert history.counts["told"] == (0 if error else 5)
    check_accounts(optimizer, history)


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


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_scheduler(tmp_path):
    def of(scheduler):
        return partial(kill_another, scheduler.pid, str(tmp_path / "killed"))

    history = History()
    assert finish(lambda: dask_processes(tmp_path), of, Watched(), history) == 1
    assert history.counts == {"told": 100, "open": 0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["processes", "Dask"])
def test_ctrl_c_to_the_group(kind, tmp_path):
    run = subprocess.Popen(
        [sys.executable, TESTS / "evaluation" / "interrupted_run.py", kind, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    wait_for(tmp_path / "begun")
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert out.strip() in ("KeyboardInterrupt", "BrokenExecutor")


@pytest.mark.slow
def test_if_all_workers_hang_the_rest_is_not_lost(cluster):
    optimizer, history = Watched(), History()
    hangs = partial(rests, 6.0)
    with (
        dask_executor(cluster.scheduler_address) as executor,
        pytest.raises(TimeoutError, match=r"\[1, 2, 3, 4\]"),
    ):
        go(hangs, optimizer, executor, 100, 6, timeout=1.0, history=history)
    assert statuses(history) == {i: "expired" if i < 5 else "open" for i in range(1, 7)}
    check_accounts(optimizer, history)


@pytest.mark.slow
def test_a_cluster_without_workers_is_said():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as empty,
        dask_executor(empty.scheduler_address) as executor,
        # Warnings are errors here.
        pytest.raises(UserWarning, match=empty.scheduler_address),
    ):
        go(dies, Watched(), executor, 4)


@pytest.mark.slow
def test_errors_of_the_body(cluster):
    from distributed.scheduler import KilledWorker

    died = KilledWorker("job", SimpleNamespace(address="tcp://127.0.0.1:1"), 3)
    for raised, seen in ((died, BrokenExecutor), (CancelledError("own"), CancelledError)):
        with pytest.raises(seen), dask_executor(cluster.scheduler_address):
            raise raised


@pytest.mark.parametrize("address", ["", "nowhere", "http://127.0.0.1:1", "tcp://127.0.0.1:x"])
def test_what_is_no_address_is_refused(address):
    pytest.importorskip("distributed")
    with pytest.raises(ConnectionError), dask_executor(address, timeout=0.2):
        pass


def test_an_address_where_nobody_answers_is_refused():
    pytest.importorskip("distributed")
    with (
        pytest.raises(ConnectionError, match="tcp://127.0.0.1:1"),
        dask_executor("tcp://127.0.0.1:1", timeout=0.2),
    ):
        pass
