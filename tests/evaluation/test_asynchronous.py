"""The scheduling of asynchronous runs, and what they refuse."""

import math
import random
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future
from concurrent.futures import ThreadPoolExecutor as Threads
from dataclasses import replace
from functools import partial

import pytest
import torch
from evaluation.watched import CHOICES, Watched, go, processes, raises, square, statuses

from tvbo import recipes, run, run_async
from tvbo.evaluation import History
from tvbo.test_functions import unit_grid
from tvbo.test_functions.panel import PanelProblem

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
    for r in history.rounds:
        assert r.reward == r.trial.X.item() ** 2
    assert [r.trial.id for r in history.rounds] == list(range(1, 31))


@pytest.mark.slow
def test_one_at_a_time_is_the_ordinary_loop():
    values = torch.rand(30, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    problem = PanelProblem(values, choices=unit_grid(4))

    def make():
        return recipes.tv_gp_ucb(choices=unit_grid(4), forgetting_rate=0.1, noise_variance=0.01)

    def measure(trial):
        return problem(problem.layout.rows(trial.X, trial.t))

    with Threads(1) as executor:
        history = go(measure, make(), executor, 30, max_pending=1)
    ordinary = run(problem, make(), horizon=30, progress=False)
    assert history.counts == {"told": 30, "open": 0}
    assert torch.equal(history.X, ordinary.X)
    assert torch.equal(history.reward, ordinary.reward)


def test_times_and_contexts_are_taken_at_each_ask(generator):
    now = iter([0.5, 0.5, 2.0])
    contexts = iter(torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64))
    optimizer = recipes.random_search(choices=CHOICES, contexts=[[0.0], [1.0]])
    with Threads(2) as executor:
        history = go(
            square, optimizer, executor, 3, times=lambda: next(now), contexts=lambda: next(contexts)
        )
    trials = [r.trial for r in history.rounds]
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


def test_an_outcome_is_told_before_the_next_ask_if_a_timeout_is_watched_meanwhile():
    optimizer = Watched()
    with Threads(1) as executor:
        # The first of 20 looks within the timeout finds it under way.
        go(lambda trial: time.sleep(0.3) or 1.0, optimizer, executor, 3, 1, timeout=4.0)
    assert [call[0] for call in optimizer.calls] == ["ask", "tell"] * 3


@pytest.mark.parametrize(
    ("start", "contexts"),
    [
        (partial(run_async, num_trials=40), None),
        (partial(run_async, num_trials=40), lambda: torch.zeros(1, dtype=torch.float64)),
        (partial(run, horizon=40), torch.zeros(40, 1, dtype=torch.float64)),
    ],
)
def test_where_asks_are_slow_the_next_trials_are_ready(start, contexts):
    class Slow(Watched):
        def ask(self, t=None, context=None):
            most_open.append(len(self.open_trials))
            time.sleep(0.03)
            return super().ask(t, context)

    class Counting(Threads):
        def submit(self, function, *args):
            under_way.append(1 + sum(not future.done() for future in futures))
            futures.append(super().submit(function, *args))
            return futures[-1]

    def measure(trial):
        time.sleep(0.02)
        return 1.0

    most_open, under_way, futures, optimizer = [], [], [], Slow()
    with Counting(3) as executor:
        history = start(
            measure,
            optimizer,
            executor=executor,
            max_pending=3,
            contexts=contexts,
            progress=False,
        )
    assert history.counts == {"told": 40, "open": 0}
    assert [r.trial.id for r in history.rounds] == list(range(1, 41))
    assert max(under_way) <= 3
    # A context is that of the evaluation, so the ask waits for a worker.
    assert max(most_open) > 3 if contexts is None else max(most_open) < 3


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
    history, another = History(), Watched()
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
