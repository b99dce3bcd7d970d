"""A reproduction gives the same on two processes as in this one, bit for bit."""

import os
import signal
import time
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

import experiments.spread as spread_module
from experiments.bedi.tables import bedi_table4
from experiments.bogunovic.fig2ab import matched_case
from experiments.bogunovic.fig2cd import bogunovic_fig2c
from experiments.bogunovic.fig3a import bogunovic_fig3a
from experiments.bogunovic.fig3cf import bogunovic_fig3cf
from experiments.bogunovic.synthetic import SIDE_BY_SIDE, Synthetic
from experiments.data.digits import ClassificationData
from experiments.data.empirical import EmpiricalPanel
from experiments.data.intel_lab import SensorDays
from experiments.data.traffic import TrafficDays
from experiments.krause.fig2 import krause_fig2
from experiments.krause.fig3 import krause_fig3
from experiments.spread import spread, worker_processes
from tvbo.evaluation import dask_executor
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid


@pytest.fixture(scope="module")
def jobs():
    with pytest.MonkeyPatch.context() as patch:
        # Workers are given the path of this process.
        patch.syspath_prepend(Path(__file__).parent)
        yield pytest.importorskip("spread_jobs")


@pytest.fixture(scope="module")
def pool(jobs):
    with worker_processes(2) as executor:
        yield executor


def speeds(steps, seed):
    """A panel of six sensors, ``steps x 6``."""
    kernel, generator = RBFKernel().double(), torch.Generator().manual_seed(seed)
    points = unit_grid(3)[:6]
    return 20 + 5 * drifting_gp(points, kernel, 0.1, horizon=steps, generator=generator).values


def fig2a(**how):
    small = Synthetic.matern(points=4, horizon=8)
    return matched_case(small, "bogunovic-fig2b", "small", 3, 1, **how)


def fig2c(**how):
    small = Synthetic.squared_exponential(points=4, horizon=6)
    # Two groups of unlike size.
    return bogunovic_fig2c(trials=SIDE_BY_SIDE + 3, seed=2, setting=small, **how)


def fig3a(**how):
    data = EmpiricalPanel(speeds(40, 0), speeds(12, 1), [f"s{i}" for i in range(6)], "10min")
    return bogunovic_fig3a(data, trials=3, seed=5, **how)


def fig3cf(**how):
    days = torch.stack([speeds(15, day) for day in range(5)])
    names = [f"s{i}" for i in range(6)]
    data = TrafficDays(days[:3], days[3:], names, "5min", train_days=[1, 2, 3], test_days=[4, 5])
    return bogunovic_fig3cf(data, trials=3, seed=1, num_sensors=5, **how)


def krause3(**how):
    times = torch.arange(12, dtype=torch.float64) * 4
    places = 20 * unit_grid(3)[:6]
    data = SensorDays(speeds(12, 3), times, places, [f"s{i}" for i in range(6)])
    return krause_fig3(data, trials=1, seed=4, per_step=2, **how)


def same(one, two):
    assert list(one) == list(two)
    for name in one:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "reproduce",
    [fig2a, *(pytest.param(f, marks=pytest.mark.slow) for f in (fig2c, fig3a, fig3cf, krause3))],
)
def test_on_processes_as_here(pool, reproduce):
    here = reproduce(progress=False)
    there = reproduce(progress=False, executor=pool)
    same(here.regret, there.regret)
    assert there.to_dict() == here.to_dict()


@pytest.mark.slow
def test_krause_fig2_on_processes_as_here(pool, drawn):
    small = {"num_examples": 40, "num_candidates": 10, "trials_per_molecule": 3, "progress": False}
    here = krause_fig2(drawn, trials=2, seed=1, **small)
    there = krause_fig2(drawn, trials=2, seed=1, executor=pool, **small)
    same(here.regret, there.regret)
    assert there.to_dict() == here.to_dict()


@pytest.mark.slow
def test_table4_on_processes_as_here_but_for_clock_times(pool):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(30, 64, dtype=torch.float64, generator=generator)
    Y = torch.arange(30) % 10
    data = ClassificationData(X[:20], Y[:20], X[20:], Y[20:], 10)
    how = {"trials": 1, "seed": 3, "horizon": 3, "epochs": 1, "points": 2, "progress": False}
    here, there = bedi_table4(data, **how), bedi_table4(data, **how, executor=pool)
    same(here.regret, there.regret)
    assert list(here.curves) == list(there.curves)
    for name in set(here.curves) - {"seconds"}:
        same(here.curves[name], there.curves[name])
    assert there.settings == here.settings


# Spreading itself.


def test_each_job_has_one_thread(pool, jobs):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        [here] = spread(jobs.process_and_threads, [0], None, "", False)
        there = spread(jobs.process_and_threads, range(8), pool, "", False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert here == (os.getpid(), 1)
    assert {threads for _, threads in there} == {1}
    assert os.getpid() not in {process for process, _ in there}


def test_tensors_pass_without_a_file_for_each(pool, jobs):
    [values] = spread(jobs.many_tensors, [3000], pool, "", False)
    assert torch.equal(torch.cat(values), torch.arange(3000, dtype=torch.float64))


def test_a_job_that_fails_fails_all(pool, jobs):
    with pytest.raises(ValueError):
        spread(jobs.double_unless_negative, [1, -1, 2], pool, "", False)


def test_a_job_that_others_cancelled_is_a_broken_executor(jobs):
    class Cancelling(ThreadPoolExecutor):
        def submit(self, function, *args):
            future = Future()
            future.cancel()
            return future

    with (
        Cancelling(1) as executor,
        pytest.raises(BrokenExecutor),
    ):
        spread(jobs.double_unless_negative, [1, 2], executor, "", False)


def test_jobs_not_begun_are_cancelled(jobs):
    futures = []

    class Holding(ThreadPoolExecutor):
        def submit(self, function, *args):
            future = super().submit(function, *args) if not futures else Future()
            futures.append(future)
            return future

    with Holding(1) as executor, pytest.raises(ValueError):
        spread(jobs.double_unless_negative, [-1, 2, 3], executor, "", False)
    assert [future.cancelled() for future in futures] == [False, True, True]


@pytest.mark.slow
def test_workers_end_at_ctrl_c_and_that_is_said(jobs):
    with worker_processes(1) as executor:
        [(process, _)] = spread(jobs.process_and_threads, [0], executor, "", False)
        os.kill(process, signal.SIGINT)
        # Whether or not it has ended when they are submitted.
        with pytest.raises(BrokenExecutor):
            spread(jobs.wait_a_minute, [0, 1], executor, "", False)


@pytest.mark.slow
def test_jobs_on_dask(jobs):
    distributed = pytest.importorskip("distributed")
    given = {"n_workers": 1, "dashboard_address": ":0", "silence_logs": 50}
    with (
        distributed.LocalCluster(**given) as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        done = spread(jobs.double_unless_negative, range(20), executor, "", progress=False)
        assert done == [2 * job for job in range(20)]
        with pytest.raises(ValueError):
            spread(jobs.double_unless_negative, [1, -1, 2], executor, "", progress=False)


def test_without_a_terminal_lines_say_how_many_jobs_are_done(monkeypatch, capsys):
    often = partial(spread_module.progress_lines, period=0.05)
    monkeypatch.setattr(spread_module, "progress_lines", often)
    spread(lambda job: time.sleep(0.2), [0, 1], None, "panels", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("panels: 1 of 2 done") for line in lines)
