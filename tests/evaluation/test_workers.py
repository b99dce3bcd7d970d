"""Evaluations that give no outcome, hang, or are done by other processes."""

import asyncio
import math
import os
import re
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, CancelledError, Future
from concurrent.futures import ThreadPoolExecutor as Threads
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest
import torch
from evaluation.watched import (
    CHOICES,
    Watched,
    accounted_for,
    go,
    processes,
    raises,
    square,
    statuses,
)

from tvbo import recipes
from tvbo.evaluation import History


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises, "RuntimeError: the reactor is cold"),
        (lambda trial: math.nan, "Expected a finite outcome. Got nan."),
        (lambda trial: -math.inf, "Expected a finite outcome. Got -inf."),
        (lambda trial: (1.0, -0.5), "Expected a variance of the noise, 0 or above. Got -0.5."),
        (lambda trial: (1.0, math.nan), "Expected a variance of the noise, 0 or above. Got nan."),
        (lambda trial: torch.ones(2), "BotorchTensorDimensionError: .*\\(2,\\)"),
        (lambda trial: (1.0, 2.0, 3.0), "ValueError: too many values to unpack"),
        (lambda trial: None, "InputDataError: .*None"),
    ],
)
def test_what_is_no_outcome_fails_with_its_reason(function, reason):
    optimizer = Watched()
    with Threads(2) as executor:
        history = go(function, optimizer, executor, 3)
    assert history.counts["failed"] == optimizer.trial_log.num_failed == 3
    for lost, r in zip(optimizer.trial_log.lost, history.rounds, strict=True):
        assert re.match(reason, r.reason)
        assert lost.reason == history.round_of(lost.trial.id).reason
        assert math.isnan(r.reward)


def test_an_outcome_that_the_optimizer_refuses_fails():
    optimizer = recipes.rexp3(choices=CHOICES, block=7, reward_bounds=(0.0, 1.0))
    with Threads(1) as executor:
        history = go(
            lambda trial: 50.0 if trial.id == 2 else 0.5, optimizer, executor, 4, max_pending=1
        )
    assert statuses(history) == {1: "told", 2: "failed", 3: "told", 4: "told"}
    [lost] = optimizer.trial_log.lost
    assert lost.reason == history.round_of(2).reason
    assert lost.reason == "Expected Y within reward_bounds (0.0, 1.0). Got 50.0."


def test_the_noise_variance_is_told():
    optimizer = Watched()
    with Threads(1) as executor:
        go(lambda trial: (torch.ones(1), 0.25), optimizer, executor, 1)
    assert optimizer.told_variance == 0.25


def test_a_trial_expires_and_its_late_outcome_is_dropped():
    optimizer, released, ended = Watched(), threading.Event(), threading.Event()

    def measure(trial):
        if trial.id == 2:
            released.wait(30)
            ended.set()
            return 1.0
        time.sleep(0.05)
        if optimizer.trial_log.num_expired:
            # Trial 2 ends while the run is still going on.
            released.set()
            ended.wait(30)
        return 1.0

    with Threads(4) as executor:
        history = go(measure, optimizer, executor, 20, max_pending=2, timeout=0.5)
    assert ended.is_set()
    assert history.round_of(2).status == "expired"
    assert history.round_of(2).reason == "no outcome within 0.5 s"
    assert history.round_of(2).evaluation_seconds >= 0.5
    assert math.isnan(history.round_of(2).reward)
    assert history.counts["expired"] == optimizer.trial_log.num_expired >= 1
    assert history.counts["told"] + history.counts["expired"] == 20
    assert 2 not in [call[1] for call in optimizer.calls if call[0] == "tell"]


class Releasing(Watched):
    """Evaluations that hang are released once so many trials expired."""

    def __init__(self, after=math.inf):
        super().__init__()
        self.after, self.released, self.begun = after, threading.Event(), []

    def expire(self, trial, reason="past its deadline"):
        super().expire(trial, reason)
        if self.trial_log.num_expired >= self.after:
            self.released.set()

    def hang(self, *trial_ids):
        def measure(trial):
            self.begun.append(trial.id)
            if trial.id in trial_ids:
                self.released.wait(30)
            return 1.0

        return measure


@pytest.mark.slow
def test_an_evaluation_that_hangs_keeps_its_slot():
    class Counting(Threads):
        def submit(self, function, *args):
            under_way.append(1 + sum(not future.done() for future in futures))
            futures.append(super().submit(function, *args))
            return futures[-1]

    futures, under_way, optimizer = [], [], Releasing()
    with Counting(2) as executor:
        history = go(
            optimizer.hang(2), optimizer, executor, 300, max_pending=2, timeout=1.5, times=pause
        )
        optimizer.released.set()
    assert statuses(history) == {i: "expired" if i == 2 else "told" for i in range(1, 301)}
    assert sorted(optimizer.begun) == list(range(1, 301))
    assert max(under_way) == 2


def pause():
    """Long enough that 300 of them outlast the time-out."""
    time.sleep(0.006)
    return 1.0


def test_a_slot_is_free_again_when_what_hung_ends():
    optimizer = Releasing(after=2)
    with Threads(2) as executor:
        history = go(optimizer.hang(1, 2), optimizer, executor, 10, max_pending=2, timeout=0.4)
    ends = {i: "expired" if i < 3 else "told" for i in range(1, 11)}
    assert statuses(history) == ends
    assert optimizer.trial_log.num_told == 8


def test_if_all_hang_the_rest_is_not_lost():
    optimizer, history = Releasing(), History()
    with Threads(2) as executor:
        with pytest.raises(TimeoutError, match=r"within 0.3 s. Got 2 that hang .* trials \[1, 2\]"):
            go(
                optimizer.hang(1, 2),
                optimizer,
                executor,
                12,
                max_pending=2,
                timeout=0.3,
                history=history,
            )
        optimizer.released.set()
    assert sorted(optimizer.begun) == [1, 2]
    assert statuses(history) == {1: "expired", 2: "expired"}
    with Threads(2) as executor:
        go(square, optimizer, executor, 10, max_pending=2, history=history)
    assert history.counts == {"expired": 2, "told": 10, "open": 0}


def test_trials_queued_behind_what_hangs_stay_open():
    optimizer, history = Releasing(), History()
    with Threads(1) as executor:
        with pytest.raises(TimeoutError, match=r"Got 1 that hang .* trials \[1\]"):
            go(
                optimizer.hang(1),
                optimizer,
                executor,
                50,
                max_pending=3,
                timeout=0.3,
                history=history,
            )
        optimizer.released.set()
    assert optimizer.begun == [1]
    assert statuses(history) == {1: "expired", 2: "open", 3: "open"}
    assert [trial.id for trial in optimizer.open_trials] == [2, 3]


@pytest.mark.parametrize("make", [Threads, processes])
def test_the_timeout_counts_from_the_start_of_an_evaluation(make):
    optimizer = Watched()
    # Neither from that of the worker nor from submitting: the last one begins after 0.8 s.
    with make(1, initializer=time.sleep, initargs=(0.5,)) as executor:
        history = go(rests, optimizer, executor, 4, max_pending=4, timeout=0.4)
    assert history.counts == {"told": 4, "open": 0}


# Processes.


def rests(trial):
    time.sleep(0.1)
    return 1.0


class CodedError(Exception):
    """Pickles, but cannot be unpickled."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class WordlessError(Exception):
    def __str__(self):
        raise ValueError


def goes_wrong(kind, trial):
    """Go wrong where the number of the trial is even."""
    if trial.id % 2:
        return 1.0
    if kind == "exit":
        sys.exit(3)
    if kind == "local":
        raise type("Local", (Exception,), {})(lambda: None)
    if kind == "no outcome":
        return {"loss": lambda: None}
    raise {
        "coded": CodedError(7, "cold"),
        "wordless": WordlessError(),
        "broken": BrokenProcessPool("not of this pool"),
        "cancelled": CancelledError(),
        "awaited": asyncio.CancelledError(),
    }[kind]


WRONG = {
    "exit": "SystemExit: 3",
    "local": "Local: ",
    "no outcome": "InputDataError: ",
    "coded": "CodedError: 7: cold",
    "wordless": "WordlessError",
    "broken": "BrokenProcessPool: not of this pool",
    "cancelled": "CancelledError: ",
    "awaited": "CancelledError: ",
}


@pytest.mark.parametrize("make", [Threads, processes])
def test_whatever_an_objective_raises_fails_its_trial_and_no_other(make):
    with make(2) as executor:
        for kind, reason in WRONG.items():
            history = go(partial(goes_wrong, kind), Watched(), executor, 6)
            assert statuses(history) == {i: "told" if i % 2 else "failed" for i in range(1, 7)}
            assert history.round_of(2).reason.startswith(reason)


def in_a_process(trial):
    return os.getpid() if trial.id % 2 else trial.X.square().sum()


class DiesOnce:
    def __init__(self, folder):
        self.mark = Path(folder) / "died"

    def __call__(self, trial):
        if trial.id == 6 and not self.mark.exists():
            self.mark.touch()
            os._exit(1)
        return 1.0


def test_processes():
    optimizer = Watched()
    with processes(2) as executor:
        history = go(in_a_process, optimizer, executor, 12)
    assert history.counts == {"told": 12, "open": 0}
    for r in history.rounds:
        trial_id = r.trial.id
        if trial_id % 2:
            assert r.reward != os.getpid()
        else:
            assert r.reward == r.trial.X.item() ** 2


def test_a_broken_executor_leaves_trials_open_for_the_next(tmp_path):
    optimizer, history, function = Watched(), History(), DiesOnce(tmp_path)
    with (
        processes(2) as executor,
        pytest.raises(BrokenExecutor, match=r"The executor broke: .* Trials \[.*6.*\] are open"),
    ):
        go(function, optimizer, executor, 20, history=history)
    assert accounted_for(optimizer) == len(history)
    assert optimizer.trial_log.num_failed == 0
    with processes(2) as executor:
        go(function, optimizer, executor, 20 - optimizer.trial_log.num_told, history=history)
    assert history.counts == {"told": 20, "open": 0}
    assert optimizer.trial_log.num_told == 20


def test_an_evaluation_cancelled_by_others_is_no_failure():
    class Cancelling(Threads):
        count = 0

        def submit(self, function, *args):
            self.count += 1
            if self.count < 3:
                return super().submit(function, *args)
            future = Future()
            future.cancel()
            return future

    optimizer = Watched()
    with Cancelling(1) as executor, pytest.raises(BrokenExecutor, match="was cancelled there"):
        go(square, optimizer, executor, 5, max_pending=1)
    assert [trial.id for trial in optimizer.open_trials] == [3]
    assert optimizer.trial_log.num_told == 2
