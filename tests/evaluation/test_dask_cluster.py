"""Against a real cluster of four processes, five of which are killed."""

import re
from concurrent.futures import BrokenExecutor, CancelledError
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from evaluation.watched import Watched, go, statuses

from experiments.spread import spread
from tvbo import recipes, run_async
from tvbo.evaluation import History
from tvbo.evaluation.dask_cluster import dask_executor

distributed = pytest.importorskip("distributed")

CHOICES = torch.arange(10, dtype=torch.float64).unsqueeze(-1)


@pytest.fixture(scope="module")
def evaluations():
    with pytest.MonkeyPatch.context() as patch:
        # Workers are given the path of this process.
        patch.syspath_prepend(Path(__file__).parent)
        yield pytest.importorskip("evaluations")


@pytest.fixture(scope="module")
def cluster(evaluations):
    import dask
    from distributed.utils import get_mp_context

    # Forked from one process that has imported everything: four times the import takes long.
    method = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set(method):
        get_mp_context().set_forkserver_preload(["distributed", "tvbo.evaluation"])
        with distributed.LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=True,
            # Any port that is free.
            dashboard_address=":0",
            silence_logs=50,
        ) as made:
            yield made


@pytest.mark.slow
def test_killed_workers_lose_no_trial(cluster, evaluations, tmp_path):
    optimizer = recipes.random_search(choices=CHOICES)
    before = {worker.pid for worker in cluster.workers.values()}
    with dask_executor(cluster.scheduler_address) as executor:
        history = run_async(
            partial(evaluations.evaluate, str(tmp_path)),
            optimizer,
            executor,
            num_trials=200,
            max_pending=8,
            progress=False,
        )
    assert len([*tmp_path.iterdir()]) == 5
    assert len(before) == 4
    assert history.counts == {"told": 180, "failed": 20, "open": 0}
    closed = optimizer.trial_log
    assert (closed.num_told, closed.num_failed, closed.num_expired) == (180, 20, 0)
    assert optimizer.open_trials == ()
    reasons = {7: "RuntimeError: the reactor is cold", 13: "Expected a finite outcome. Got nan."}
    for r in history.rounds:
        trial_id = r.trial.id
        assert r.reason == reasons.get(trial_id % 20, "")
        assert r.status == ("failed" if r.reason else "told")
        if r.status == "told":
            assert r.reward == r.trial.X.item() ** 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "broken", "cancelled"])
def test_whatever_an_objective_raises_fails_its_trial(cluster, evaluations, how):
    with dask_executor(cluster.scheduler_address) as executor:
        history = go(partial(evaluations.leaves, how), Watched(), executor, 20)
    assert statuses(history) == {i: "told" if i % 2 else "failed" for i in range(1, 21)}


@pytest.mark.slow
def test_if_all_hang_the_rest_is_not_lost(cluster, evaluations):
    optimizer, history = Watched(), History()
    with (
        dask_executor(cluster.scheduler_address) as executor,
        pytest.raises(TimeoutError, match=r"Got 4 that hang .* trials \[1, 2, 3, 4\]"),
    ):
        go(evaluations.hangs, optimizer, executor, 20, 6, timeout=1.0, history=history)
    assert statuses(history) == {i: "expired" if i < 5 else "open" for i in range(1, 7)}


@pytest.mark.slow
def test_a_cluster_without_workers_is_said(evaluations):
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as empty,
        dask_executor(empty.scheduler_address) as executor,
        # Warnings are errors here.
        pytest.raises(UserWarning, match=re.escape(empty.scheduler_address)),
    ):
        go(evaluations.hangs, Watched(), executor, 4)


@pytest.mark.slow
def test_jobs_of_a_reproduction(cluster, evaluations):
    with dask_executor(cluster.scheduler_address) as executor:
        done = spread(evaluations.double_unless_negative, range(20), executor, "", progress=False)
        assert done == [2 * job for job in range(20)]
        with pytest.raises(ValueError, match="Got -1"):
            spread(evaluations.double_unless_negative, [1, -1, 2], executor, "", progress=False)


def test_what_the_body_cancels_is_its_own(cluster):
    with (
        pytest.raises(CancelledError, match="not of Dask"),
        dask_executor(cluster.scheduler_address),
    ):
        raise CancelledError("not of Dask")


def test_workers_that_died_are_a_broken_executor(cluster):
    from distributed.scheduler import KilledWorker

    with (
        pytest.raises(BrokenExecutor, match="Dask lost workers by their work"),
        dask_executor(cluster.scheduler_address),
    ):
        raise KilledWorker("job", SimpleNamespace(address="tcp://127.0.0.1:1"), 3)


@pytest.mark.parametrize("address", ["", "nowhere", "http://127.0.0.1:1", "tcp://127.0.0.1:x"])
def test_what_is_no_address_is_refused(address):
    with (
        pytest.raises(ConnectionError, match="address of a running Dask scheduler"),
        dask_executor(address),
    ):
        pass


def test_an_address_where_nobody_answers_is_refused():
    with (
        pytest.raises(ConnectionError, match=r"Got 'tcp://127.0.0.1:1': Timed out"),
        dask_executor("tcp://127.0.0.1:1", timeout=0.2),
    ):
        pass
