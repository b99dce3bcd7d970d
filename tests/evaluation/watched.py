"""What the tests of asynchronous runs share."""

import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures import ThreadPoolExecutor as Threads
from multiprocessing import get_all_start_methods, get_context

import pytest
import torch

from tvbo import run_async
from tvbo.optimizers import RandomSearch
from tvbo.spaces import FiniteSpace

CHOICES = torch.arange(10, dtype=torch.float64).unsqueeze(-1)


class Watched(RandomSearch):
    """Random search that notes who calls it with what."""

    def __init__(self):
        super().__init__(FiniteSpace(CHOICES), generator=torch.Generator().manual_seed(3))
        self.calls = []

    def ask(self, t=None, context=None):
        self.calls.append(("ask", t, threading.get_ident()))
        return super().ask(t, context)

    def tell(self, trial, Y, Yvar=None):
        super().tell(trial, Y, Yvar)
        self.calls.append(("tell", trial.id, threading.get_ident()))

    @property
    def told(self):
        """Numbers of the trials, in the order of telling."""
        return [call[1] for call in self.calls if call[0] == "tell"]


class Counting(Threads):
    """Notes how many evaluations are under way at each submit."""

    def __init__(self, n):
        super().__init__(n)
        self.futures, self.under_way = [], []

    def submit(self, function, *args):
        self.under_way.append(1 + sum(not future.done() for future in self.futures))
        self.futures.append(super().submit(function, *args))
        return self.futures[-1]


class Cancelling(Executor):
    """Cancels the third of its jobs, and does the others at once."""

    count = 0

    def submit(self, function, *args):
        self.count, future = self.count + 1, Future()
        if self.count == 3:
            future.cancel()
        else:
            future.set_result(function(*args))
        return future


def go(function, optimizer, executor, num_trials, max_pending=4, **more):
    return run_async(
        function,
        optimizer,
        executor,
        num_trials=num_trials,
        max_pending=max_pending,
        progress=False,
        **more,
    )


def square(trial):
    return trial.X.square().sum()


def statuses(history):
    return {r.trial.id: r.status for r in history.rounds}


def check_accounts(optimizer, history):
    """Every trial is in one state, the same in optimizer and history, and none was told twice."""
    log = optimizer.trial_log
    ends = {"told": log.num_told, "failed": log.num_failed, "expired": log.num_expired}
    assert {status: history.counts[status] for status in ends} == ends
    assert history.counts["open"] == len(optimizer.open_trials)
    assert sum(history.counts.values()) == len(history) == optimizer.num_trials
    assert len(set(optimizer.told)) == len(optimizer.told) == log.num_told


def processes(n, **given):
    if "fork" not in get_all_start_methods():
        pytest.skip("processes are not forked here")
    return ProcessPoolExecutor(n, mp_context=get_context("fork"), **given)
