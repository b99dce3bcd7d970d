"""What stops an asynchronous run, and what it leaves."""

import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor as Threads
from concurrent.futures import wait

import pytest
from botorch.exceptions.errors import InputDataError
from evaluation.watched import CHOICES, Watched, accounted_for, go, processes, raises, square

from tvbo import recipes
from tvbo.evaluation import History
from tvbo.optimizers import Optimizer


def test_ctrl_c_leaves_a_state_to_go_on_from():
    optimizer, history = Watched(), History()
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
            assert history.round_of(trial.id).status == "open"
        assert signal.getsignal(signal.SIGINT) is handler
        left = 60 - optimizer.trial_log.num_told
        go(square, optimizer, executor, left, history=history)
    told = [call[1] for call in optimizer.calls if call[0] == "tell"]
    assert sorted(told) == list(range(1, 61))
    assert history.counts == {"told": 60, "open": 0}


def test_a_journaled_run_goes_on_where_ctrl_c_left_it(tmp_path):
    optimizer = recipes.random_search(choices=CHOICES)
    optimizer.record(tmp_path / "run.db")
    history = History()

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

    futures, now, history = [], iter([1.0, 2.0, 3.0, 0.0]), History()

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


def rests(trial):
    time.sleep(0.1)
    return 1.0


def test_what_a_process_begins_after_the_end_does_not_fail():
    class Slow(Watched):
        def tell(self, trial, Y, Yvar=None):
            time.sleep(0.5)
            super().tell(trial, Y, Yvar)

    optimizer, now = Slow(), iter([1.0, 2.0, 3.0])
    with processes(1) as executor, pytest.raises(ZeroDivisionError):
        # Trial 3, which the pool does not cancel, begins and ends while the outcome of 1 is told.
        go(rests, optimizer, executor, 9, 3, timeout=60.0, times=lambda: next(now, 0) or 1 / 0)
    assert optimizer.trial_log.num_failed == 0
    assert optimizer.trial_log.num_told + len(optimizer.open_trials) == 3


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

    optimizer, history = Broken(), History()
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
