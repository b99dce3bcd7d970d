"""What the tests of asynchronous runs share."""

import threading
from concurrent.futures import ProcessPoolExecutor
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
        self.calls.append(("ask", t, context, threading.get_ident()))
        return super().ask(t, context)

    def tell(self, trial, Y, Yvar=None):
        self.calls.append(("tell", trial.id, Y, threading.get_ident()))
        self.told_variance = Yvar
        super().tell(trial, Y, Yvar)


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


def raises(trial):
    raise RuntimeError("the reactor is cold")


def statuses(history):
    return {r.trial.id: r.status for r in history.rounds}


def accounted_for(optimizer):
    trial_log = optimizer.trial_log
    return (
        trial_log.num_told
        + trial_log.num_failed
        + trial_log.num_expired
        + len(optimizer.open_trials)
    )


def processes(n, **given):
    if "fork" not in get_all_start_methods():
        pytest.skip("processes are not forked here")
    return ProcessPoolExecutor(n, mp_context=get_context("fork"), **given)
