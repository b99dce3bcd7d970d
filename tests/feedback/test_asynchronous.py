import math
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures import ThreadPoolExecutor as Threads
from dataclasses import replace
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo import recipes, run
from tvbo.feedback.async_history import AsyncHistory
from tvbo.feedback.asynchronous import run_async
from tvbo.optimizers import Optimizer, RandomSearch
from tvbo.problems import unit_grid
from tvbo.problems.panel import PanelProblem
from tvbo.search_space import FiniteSpace

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


def statuses(history):
    return {trial_id: r.status for trial_id, r in history.rounds.items()}


def accounted_for(optimizer):
    closed = optimizer.trial_log
    return closed.num_told + closed.num_failed + closed.num_expired + len(optimizer.open_trials)


# The scheduling.


class Patient(Executor):
    """Ends one evaluation, any of them, and only once there are as many as there should be."""

    def __init__(self, num_trials, max_pending):
        self.to_come, self.max_pending = num_trials, max_pending
        self.waiting, self.seen = [], []
        self.changed = threading.Condition()
        self.random = random.Random(5)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def submit(self, function, *args):
        future = Future()
        with self.changed:
            self.waiting.append((future, function, args))
            self.changed.notify()
        return future

    def work(self):
        while self.to_come:
            with self.changed:
                full = min(self.max_pending, self.to_come)
                self.changed.wait_for(lambda full=full: len(self.waiting) >= full, timeout=5)
                self.seen.append(len(self.waiting))
                self.random.shuffle(self.waiting)
                future, function, args = self.waiting.pop()
            self.to_come -= 1
            future.set_result(function(*args))


def test_as_many_are_open_as_may_be():
    executor, optimizer = Patient(40, 6), Watched()
    history = go(square, optimizer, executor, 40, max_pending=6)
    executor.thread.join()
    assert executor.seen == [6] * 34 + [6, 5, 4, 3, 2, 1]
    assert history.counts == {"told": 40, "open": 0}
    told = [call[1] for call in optimizer.calls if call[0] == "tell"]
    assert sorted(told) == list(range(1, 41)) != told


def test_every_outcome_is_told_in_the_calling_thread():
    optimizer = Watched()
    with Threads(4) as executor:
        history = go(square, optimizer, executor, 30)
    assert {call[3] for call in optimizer.calls} == {threading.get_ident()}
    assert Counter(call[0] for call in optimizer.calls) == {"ask": 30, "tell": 30}
    for r in history.rounds.values():
        assert r.reward == r.trial.X.item() ** 2
    assert list(history.rounds) == list(range(1, 31))


def test_one_at_a_time_is_the_ordinary_loop():
    values = torch.rand(30, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    problem = PanelProblem(values, choices=unit_grid(4))

    def make():
        return recipes.tv_gp_ucb(choices=unit_grid(4), forgetting_rate=0.1, noise_variance=0.01)

    def measure(trial):
        return problem(problem.columns.rows(trial.X, trial.t))

    with Threads(1) as executor:
        history = go(measure, make(), executor, 30, max_pending=1)
    ordinary = run(problem, make(), horizon=30, progress=False)
    assert torch.equal(torch.cat([r.trial.X for r in history.rounds.values()]), ordinary.X)
    assert torch.equal(history.reward, ordinary.reward)


def test_times_and_contexts_are_taken_at_each_ask(generator):
    now = iter([0.5, 0.5, 2.0])
    contexts = iter(torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64))
    optimizer = recipes.random_search(choices=CHOICES, contexts=[[0.0], [1.0]])
    with Threads(2) as executor:
        history = go(
            square, optimizer, executor, 3, times=lambda: next(now), contexts=lambda: next(contexts)
        )
    trials = [r.trial for r in history.rounds.values()]
    assert [(trial.t, trial.context.item()) for trial in trials] == [(0.5, 0), (0.5, 1), (2.0, 0)]


def test_open_trials_come_first_and_count():
    optimizer = Watched()
    before = [optimizer.ask() for _ in range(3)]
    optimizer.tell(before[1], 0.0)
    submitted = []

    def measure(trial):
        submitted.append(trial.id)
        return 1.0

    with Threads(1) as executor:
        history = go(measure, optimizer, executor, 5, max_pending=1)
    assert submitted == [1, 3, 4, 5, 6]
    assert history.ask_seconds[:2].tolist() == [0, 0]
    assert optimizer.open_trials == ()


def test_skipped_trials_count_and_are_not_evaluated():
    class Skipping(Watched):
        def _judge(self, trial):
            return replace(trial, skipped=trial.id % 2 == 0)

    evaluated = []
    with Threads(2) as executor:
        history = go(lambda trial: evaluated.append(trial.id) or 1.0, Skipping(), executor, 6)
    assert sorted(evaluated) == [1, 3, 5]
    assert statuses(history) == {i: "skipped" if i % 2 == 0 else "told" for i in range(1, 7)}


# Outcomes that are none.


def raises(trial):
    raise RuntimeError("the reactor is cold")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises, "RuntimeError: the reactor is cold"),
        (lambda trial: math.nan, "Expected a finite outcome. Got nan."),
        (lambda trial: -math.inf, "Expected a finite outcome. Got -inf."),
        (lambda trial: (1.0, -0.5), "Expected a variance of the noise, 0 or above. Got -0.5."),
        (lambda trial: (1.0, math.nan), "Expected a variance of the noise, 0 or above. Got nan."),
        (lambda trial: torch.ones(2), "ValueError: Expected one number, .* Got shape \\(2,\\)."),
        (lambda trial: (1.0, 2.0, 3.0), "ValueError: too many values to unpack"),
        (lambda trial: None, "TypeError: .*NoneType"),
    ],
)
def test_what_is_no_outcome_fails_with_its_reason(function, reason):
    optimizer = Watched()
    with Threads(2) as executor:
        history = go(function, optimizer, executor, 3)
    assert history.counts["failed"] == optimizer.trial_log.num_failed == 3
    for lost, r in zip(optimizer.trial_log.lost, history.rounds.values(), strict=True):
        assert re.match(reason, r.reason)
        assert lost.reason == history.rounds[lost.trial.id].reason
        assert math.isnan(r.reward)


def test_an_outcome_that_the_optimizer_refuses_fails():
    optimizer = recipes.rexp3(choices=CHOICES, block=7, reward_bounds=(0.0, 1.0))
    with Threads(1) as executor:
        history = go(
            lambda trial: 50.0 if trial.id == 2 else 0.5, optimizer, executor, 4, max_pending=1
        )
    assert statuses(history) == {1: "told", 2: "failed", 3: "told", 4: "told"}
    [lost] = optimizer.trial_log.lost
    assert lost.reason == history.rounds[2].reason
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
    assert history.rounds[2].status == "expired"
    assert history.rounds[2].reason == "no outcome within 0.5 s"
    assert history.rounds[2].evaluation_seconds >= 0.5
    assert math.isnan(history.rounds[2].reward)
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


def test_an_evaluation_that_hangs_keeps_its_slot():
    class Counting(Threads):
        def submit(self, function, *args):
            under_way.append(1 + sum(not future.done() for future in futures))
            futures.append(super().submit(function, *args))
            return futures[-1]

    futures, under_way, optimizer = [], [], Releasing()
    with Counting(2) as executor:
        history = go(
            optimizer.hang(2), optimizer, executor, 300, max_pending=2, timeout=0.5, times=pause
        )
        optimizer.released.set()
    assert statuses(history) == {i: "expired" if i == 2 else "told" for i in range(1, 301)}
    assert sorted(optimizer.begun) == list(range(1, 301))
    assert max(under_way) == 2


def pause():
    """Long enough that 300 of them outlast the time-out."""
    time.sleep(0.003)
    return 1.0


def test_a_slot_is_free_again_when_what_hung_ends():
    optimizer = Releasing(after=2)
    with Threads(2) as executor:
        history = go(optimizer.hang(1, 2), optimizer, executor, 10, max_pending=2, timeout=0.4)
    ends = {i: "expired" if i < 3 else "told" for i in range(1, 11)}
    assert statuses(history) == ends
    assert optimizer.trial_log.num_told == 8


def test_if_all_hang_the_rest_is_not_lost():
    optimizer, history = Releasing(), AsyncHistory()
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
    optimizer, history = Releasing(), AsyncHistory()
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
    assert statuses(history) == {i: "expired" if i < 4 else "open" for i in range(1, 6)}
    assert [trial.id for trial in optimizer.open_trials] == [4, 5]


# What stops a run.


def test_ctrl_c_leaves_a_state_to_go_on_from():
    optimizer, history = Watched(), AsyncHistory()
    handler, stopped = signal.getsignal(signal.SIGINT), threading.Event()

    def measure(trial):
        time.sleep(0.002)
        if trial.id == 20:
            os.kill(os.getpid(), signal.SIGINT)
            stopped.wait(10)
        return 1.0

    with Threads(4) as executor:
        with pytest.raises(KeyboardInterrupt):
            go(measure, optimizer, executor, 60, history=history)
        stopped.set()
        # Trial 20 was under way.
        assert 20 in [trial.id for trial in optimizer.open_trials]
        assert accounted_for(optimizer) == len(history) < 60
        for trial in optimizer.open_trials:
            assert history.rounds[trial.id].status == "open"
        assert signal.getsignal(signal.SIGINT) is handler
        left = 60 - optimizer.trial_log.num_told
        go(square, optimizer, executor, left, history=history)
    told = [call[1] for call in optimizer.calls if call[0] == "tell"]
    assert sorted(told) == list(range(1, 61))
    assert history.counts == {"told": 60, "open": 0}


def test_a_journaled_run_goes_on_where_ctrl_c_left_it(tmp_path):
    optimizer = recipes.random_search(choices=CHOICES)
    optimizer.record(tmp_path / "run.db")
    history = AsyncHistory()

    def measure(trial):
        if trial.id == 12:
            raise KeyboardInterrupt
        return raises(trial) if trial.id == 5 else square(trial)

    with Threads(2) as executor:
        with pytest.raises(KeyboardInterrupt):
            go(measure, optimizer, executor, 20, max_pending=2, history=history)
        optimizer.close()
        again = Optimizer.open(tmp_path / "run.db")
        assert 12 in [trial.id for trial in again.open_trials]
        go(square, again, executor, 20 - history.num_ended, history=history)
        again.close()
    assert history.counts == {"told": 19, "failed": 1, "open": 0}
    assert (again.trial_log.num_told, again.trial_log.num_failed) == (19, 1)


class Interrupted(Watched):
    """Ctrl-C comes in the midst of the fifth choice, once or twice."""

    times = 1

    def _choose(self, round_number, t, context):
        if round_number == 5:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
            self.calls.append(("chosen", round_number, None, 0))
        return super()._choose(round_number, t, context)


def test_ctrl_c_waits_for_the_optimizer():
    optimizer = Interrupted()
    with Threads(2) as executor, pytest.raises(KeyboardInterrupt):
        go(square, optimizer, executor, 20, max_pending=2)
    assert ("chosen", 5, None, 0) in optimizer.calls
    assert accounted_for(optimizer) == 5


def test_a_second_ctrl_c_does_not_wait():
    optimizer = Interrupted()
    optimizer.times = 2
    with Threads(2) as executor, pytest.raises(KeyboardInterrupt):
        go(square, optimizer, executor, 20, max_pending=2)
    assert ("chosen", 5, None, 0) not in optimizer.calls
    assert accounted_for(optimizer) == 4


def test_an_interrupted_worker_interrupts():
    def measure(trial):
        if trial.id == 3:
            raise KeyboardInterrupt
        return 1.0

    optimizer = Watched()
    with Threads(1) as executor, pytest.raises(KeyboardInterrupt):
        go(measure, optimizer, executor, 10, max_pending=1)
    assert [trial.id for trial in optimizer.open_trials] == [3]


def test_an_ask_that_raises_loses_no_outcome():
    class Listed(Threads):
        def submit(self, function, *args):
            futures.append(super().submit(function, *args))
            return futures[-1]

    futures, now, history = [], iter([1.0, 2.0, 3.0, 0.0]), AsyncHistory()

    def times():
        t = next(now)
        if t == 0.0:
            # All have an outcome by the time at which the ask raises.
            wait(futures, timeout=10)
        return t

    optimizer = Watched()
    with Listed(4) as executor, pytest.raises(InputDataError, match="Expected t >= 3.0"):
        go(square, optimizer, executor, 10, times=times, history=history)
    assert history.counts == {"told": 3, "open": 0}
    assert optimizer.trial_log.num_told == 3


def test_outside_the_main_thread():
    optimizer = Watched()
    with Threads(2) as executor, Threads(1) as other:
        history = other.submit(go, square, optimizer, executor, 10).result()
    assert history.counts == {"told": 10, "open": 0}


def test_a_tell_that_raises_is_not_repeated():
    class Broken(Watched):
        def _learn(self, trial, observation):
            if trial.id in (3, 4):
                raise ArithmeticError(f"trial {trial.id} does not fit")

    optimizer, history = Broken(), AsyncHistory()
    begun = threading.Barrier(2)

    def measure(trial):
        if trial.id in (3, 4):
            begun.wait(10)
        return 1.0

    with Threads(2) as executor, pytest.raises(ArithmeticError, match="does not fit"):
        go(measure, optimizer, executor, 4, max_pending=2, history=history)
    told = Counter(call[1] for call in optimizer.calls if call[0] == "tell")
    assert max(told.values()) == 1
    assert [trial.id for trial in optimizer.open_trials] == [3, 4]
    assert history.counts == {"told": 2, "open": 2}


# Processes.


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


def processes(n):
    if "fork" not in get_all_start_methods():
        pytest.skip("processes are not forked here")
    return ProcessPoolExecutor(n, mp_context=get_context("fork"))


def test_processes():
    optimizer = Watched()
    with processes(2) as executor:
        history = go(in_a_process, optimizer, executor, 12)
    assert history.counts == {"told": 12, "open": 0}
    for trial_id, r in history.rounds.items():
        if trial_id % 2:
            assert r.reward != os.getpid()
        else:
            assert r.reward == r.trial.X.item() ** 2


def test_a_broken_executor_leaves_trials_open_for_the_next(tmp_path):
    optimizer, history, function = Watched(), AsyncHistory(), DiesOnce(tmp_path)
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


# Bad input.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_trials": 0}, "Expected num_trials to be a whole number >= 1. Got 0"),
        ({"num_trials": 2.5}, "Expected num_trials to be a whole number >= 1. Got 2.5"),
        ({"num_trials": math.nan}, "Expected num_trials to be a whole number >= 1. Got nan"),
        ({"max_pending": 0}, "Expected max_pending to be a whole number >= 1. Got 0"),
        ({"max_pending": 1.5}, "Expected max_pending to be a whole number >= 1. Got 1.5"),
        ({"timeout": 0.0}, "timeout > 0 seconds. Got 0"),
        ({"timeout": math.nan}, "timeout > 0 seconds. Got nan"),
    ],
)
def test_numbers_that_are_refused(wrong, message):
    given = {"num_trials": 3, "max_pending": 4} | wrong
    with Threads(1) as executor, pytest.raises(ValueError, match=message):
        run_async(square, Watched(), executor, **given)


def test_another_optimizers_history_is_refused_before_an_ask():
    history, another = AsyncHistory(), Watched()
    with Threads(1) as executor:
        go(square, Watched(), executor, 3, history=history)
        with pytest.raises(ValueError, match="Got one with 3 trials told; here 0"):
            go(square, another, executor, 3, history=history)
    assert another.calls == []
    assert len(history) == 3


def test_what_is_no_executor_is_refused():
    with pytest.raises(TypeError, match=r"Expected an executor .*get_executor.* Got list"):
        go(square, Watched(), [], 3)


def test_a_function_that_cannot_be_sent_is_refused():
    optimizer = Watched()
    with processes(1) as executor, pytest.raises(TypeError, match=r"can be sent .*lambda"):
        go(lambda trial: 1.0, optimizer, executor, 3)
    assert optimizer.calls == []


# The bar.


def test_the_bar_is_on_stderr(capsys):
    with Threads(2) as executor:
        run_async(raises, Watched(), executor, num_trials=5, max_pending=2, label="here")
    out, err = capsys.readouterr()
    assert out == ""
    assert "here" in err
    assert "5/5" in err
    assert "0 open, 5 failed" in err


def test_without_a_bar_nothing_is_printed(capsys):
    with Threads(2) as executor:
        go(square, Watched(), executor, 3)
    assert capsys.readouterr() == ("", "")
