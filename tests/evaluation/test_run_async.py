"""`run_async`, and `run` with an executor: scheduling, time-outs, what goes wrong, Ctrl-C."""

import math
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import BrokenExecutor, wait
from concurrent.futures import ThreadPoolExecutor as Threads
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from evaluation.watched import (
    CHOICES,
    Cancelling,
    Counting,
    Watched,
    check_accounts,
    go,
    processes,
    square,
    statuses,
)
from evaluation.wrong import REASONS, goes_wrong, kill, rests
from gpytorch.kernels import RBFKernel

from experiments.problems.contextual_panel import ContextualPanelProblem
from tvbo import recipes, run, run_async
from tvbo.evaluation import EvaluationError, History
from tvbo.optimizers import Optimizer
from tvbo.test_functions import PanelProblem, drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid


def given_recipe(**options):
    return recipes.tv_gp_ucb(
        choices=unit_grid(4), forgetting_rate=0.1, noise_variance=0.01, **options
    )


# The scheduling.


def test_every_outcome_is_told_in_the_calling_thread():
    optimizer = Watched()
    with Counting(4) as executor:
        history = go(square, optimizer, executor, 30)
    assert max(executor.under_way) <= 4
    assert {call[2] for call in optimizer.calls} == {threading.get_ident()}
    check_accounts(optimizer, history)
    assert history.counts == {"told": 30, "open": 0}
    assert [r.reward for r in history.rounds] == history.X.square().flatten().tolist()


@pytest.mark.parametrize("start", [run, run_async])
def test_one_at_a_time_is_the_loop_in_this_thread(start):
    values = torch.rand(12, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    problem = PanelProblem(values, choices=unit_grid(4))
    count = {"horizon": 12} if start is run else {"num_trials": 12, "max_pending": 1}
    with Threads(1) as executor:
        history = start(problem, given_recipe(), executor=executor, progress=False, **count)
    ordinary = run(problem, given_recipe(), horizon=12, progress=False)
    assert torch.equal(history.X, ordinary.X)
    assert torch.equal(history.regret, ordinary.regret)


def test_a_problem_is_scored_at_the_times_and_contexts_of_the_asks():
    generator = torch.Generator().manual_seed(2)
    values = torch.rand(12, 10, 2, dtype=torch.float64, generator=generator)
    listed = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    problem = ContextualPanelProblem(values, listed, choices=CHOICES)
    now, contexts = iter(range(1, 13)), iter(listed.repeat(6, 1))
    optimizer = recipes.random_search(choices=CHOICES, contexts=listed)
    with Threads(2) as executor:
        history = go(
            problem,
            optimizer,
            executor,
            12,
            max_pending=2,
            times=lambda: float(next(now)),
            contexts=lambda: next(contexts),
        )
    best = torch.stack([values[i, :, i % 2].max() for i in range(12)])
    torch.testing.assert_close(history.regret, best - history.reward)
    assert [r.trial.context.item() for r in history.rounds] == [0.0, 1.0] * 6


def test_open_trials_come_first_and_count():
    optimizer, submitted = Watched(), []
    before = [optimizer.ask() for _ in range(3)]
    optimizer.tell(before[1], 0.0)
    with Threads(1) as executor:
        history = go(lambda trial: submitted.append(trial.id) or 1.0, optimizer, executor, 5, 1)
    assert submitted == [1, 3, 4, 5, 6]
    assert [r.ask_seconds for r in history.rounds[:2]] == [0, 0]
    assert optimizer.open_trials == ()


def test_skipped_trials_count_and_are_not_evaluated():
    optimizer = recipes.compressed_gp(
        choices=CHOICES[:2],
        covar_module=RBFKernel().double(),
        noise_variance=0.05,
        budget=0.5,
        mode="skip",
    )
    evaluated = []
    with Threads(1) as executor:
        history = go(lambda trial: evaluated.append(trial.id) or 1.0, optimizer, executor, 20, 1)
    assert history.counts["skipped"] > 0
    assert evaluated == [i for i, status in statuses(history).items() if status == "told"]


def test_an_outcome_is_told_before_the_next_ask_if_a_timeout_is_watched_meanwhile():
    optimizer = Watched()
    with Threads(1) as executor:
        # One of the looks within the timeout finds the first under way.
        go(partial(rests, 0.15), optimizer, executor, 3, 1, timeout=2.0)
    assert [call[0] for call in optimizer.calls] == ["ask", "tell"] * 3


@pytest.mark.parametrize(
    ("start", "contexts"),
    [
        (partial(run_async, num_trials=20), None),
        (partial(run_async, num_trials=20), lambda: torch.zeros(1, dtype=torch.float64)),
        (partial(run, horizon=20), torch.zeros(20, 1, dtype=torch.float64)),
    ],
)
def test_where_asks_are_slow_the_next_trials_are_ready(start, contexts):
    class Slow(Watched):
        def ask(self, t=None, context=None):
            most_open.append(len(self.open_trials))
            time.sleep(0.03)
            return super().ask(t, context)

    most_open, optimizer = [], Slow()
    given = {"max_pending": 3, "contexts": contexts, "progress": False}
    with Counting(3) as executor:
        history = start(partial(rests, 0.02), optimizer, executor=executor, **given)
    check_accounts(optimizer, history)
    assert history.counts == {"told": 20, "open": 0}
    assert max(executor.under_way) <= 3
    # A context is that of the evaluation, so the ask waits for a worker.
    assert max(most_open) > 3 if contexts is None else max(most_open) < 3


# Evaluations that go wrong.


@pytest.mark.parametrize("make", [Threads, processes])
def test_whatever_an_objective_does_fails_its_trial_and_no_other(make):
    with make(2) as executor:
        for kind, reason in REASONS.items():
            optimizer = Watched()
            history = go(partial(goes_wrong, kind), optimizer, executor, 6)
            check_accounts(optimizer, history)
            assert statuses(history) == {i: "told" if i % 2 else "failed" for i in range(1, 7)}
            for lost in optimizer.trial_log.newest:
                assert lost.reason.startswith(reason)
                assert lost.reason == history.round_of(lost.trial).reason
            assert (history.reward[::2] == history.X[::2, 0] ** 2).all()


@pytest.mark.parametrize(
    "outcome", [-math.inf, (1.0, -0.5), (1.0, math.nan), torch.ones(2), (1.0, 2.0, 3.0), None]
)
def test_what_is_no_outcome_fails(outcome):
    optimizer = Watched()
    with Threads(2) as executor:
        history = go(lambda trial: outcome, optimizer, executor, 3)
    assert history.counts["failed"] == optimizer.trial_log.num_failed == 3
    assert history.reward.isnan().all()


def test_an_outcome_that_the_optimizer_refuses_fails():
    optimizer = recipes.tv_gp_ucb(
        bounds={"x": (0.0, 1.0)}, objectives=["gain"], constraints={"load": (None, 1.0)}
    )
    with Threads(1) as executor:
        history = go(
            lambda trial: {"gain": 1.0} | ({"load": 0.5} if trial.id == 2 else {}),
            optimizer,
            executor,
            3,
            max_pending=1,
        )
    assert statuses(history) == {1: "failed", 2: "told", 3: "failed"}
    assert "load" in history.round_of(1).reason


@pytest.mark.parametrize(
    "start", [partial(run, horizon=5), partial(run_async, num_trials=5, max_pending=1)]
)
def test_an_evaluation_that_goes_wrong_may_end_the_run(start):
    optimizer, history = Watched(), History()
    given = {"on_error": "raise", "history": history, "progress": False}
    with Threads(1) as executor, pytest.raises(EvaluationError, match="CodedError"):
        start(partial(goes_wrong, "coded"), optimizer, executor=executor, **given)
    assert [trial.id for trial in optimizer.open_trials] == [2]
    check_accounts(optimizer, history)


# Time-outs.


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


def test_an_evaluation_that_hangs_keeps_its_slot_and_its_late_outcome_is_dropped():
    optimizer, history, now = Releasing(), History(), iter(range(1, 200))

    def times():
        # So that 60 asks outlast the time-out.
        time.sleep(0.01)
        return float(next(now))

    with Counting(2) as executor:
        go(
            optimizer.hang(2),
            optimizer,
            executor,
            60,
            max_pending=2,
            timeout=0.3,
            times=times,
            history=history,
        )
        optimizer.released.set()
    assert statuses(history) == {i: "expired" if i == 2 else "told" for i in range(1, 61)}
    check_accounts(optimizer, history)
    assert history.round_of(2).evaluation_seconds >= 0.3
    assert sorted(optimizer.begun) == list(range(1, 61))
    assert max(executor.under_way) == 2


def test_a_slot_is_free_again_when_what_hung_ends():
    optimizer = Releasing(after=2)
    with Threads(2) as executor:
        history = go(optimizer.hang(1, 2), optimizer, executor, 10, max_pending=2, timeout=0.3)
    assert statuses(history) == {i: "expired" if i < 3 else "told" for i in range(1, 11)}
    check_accounts(optimizer, history)


@pytest.mark.parametrize(("workers", "max_pending"), [(2, 2), (1, 3)])
def test_if_all_hang_the_rest_is_not_lost(workers, max_pending):
    optimizer, history = Releasing(), History()
    hanging = range(1, workers + 1)
    with Threads(workers) as executor:
        with pytest.raises(TimeoutError, match=r"\[1"):
            go(
                optimizer.hang(*hanging),
                optimizer,
                executor,
                12,
                max_pending=max_pending,
                timeout=0.3,
                history=history,
            )
        optimizer.released.set()
    assert sorted(optimizer.begun) == [*hanging]
    ends = {i: "expired" if i <= workers else "open" for i in range(1, max_pending + 1)}
    assert statuses(history) == ends
    with Threads(2) as executor:
        go(square, optimizer, executor, 10, history=history)
    assert history.counts == {"expired": workers, "told": 10, "open": 0}
    check_accounts(optimizer, history)


@pytest.mark.parametrize("make", [Threads, processes])
def test_the_timeout_counts_from_the_start_of_an_evaluation(make):
    # Neither from that of the worker nor from submitting: the last one begins after 0.7 s.
    with make(1, initializer=time.sleep, initargs=(0.4,)) as executor:
        history = go(partial(rests, 0.1), Watched(), executor, 4, max_pending=4, timeout=0.35)
    assert history.counts == {"told": 4, "open": 0}


# Executors that break, Ctrl-C, errors of the optimizer.


def test_a_broken_executor_leaves_trials_open_for_the_next(tmp_path):
    optimizer, history, function = Watched(), History(), partial(kill, str(tmp_path))
    with processes(2) as executor, pytest.raises(BrokenExecutor, match=r"Trials \[.*10.*\]"):
        go(function, optimizer, executor, 20, history=history)
    check_accounts(optimizer, history)
    assert history.counts["failed"] == 0
    with processes(2) as executor:
        go(function, optimizer, executor, 20 - history.num_ended, history=history)
    assert history.counts == {"told": 20, "open": 0}
    check_accounts(optimizer, history)


def test_an_evaluation_cancelled_by_others_is_no_failure():
    optimizer, history = Watched(), History()
    with pytest.raises(BrokenExecutor):
        go(square, optimizer, Cancelling(), 5, max_pending=1, history=history)
    assert statuses(history) == {1: "told", 2: "told", 3: "open"}
    check_accounts(optimizer, history)


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
        assert history.round_of(20).status == "open"
        check_accounts(optimizer, history)
        assert signal.getsignal(signal.SIGINT) is handler
        go(square, optimizer, executor, 60 - history.num_ended, history=history)
    assert history.counts == {"told": 60, "open": 0}
    check_accounts(optimizer, history)


def test_an_interrupted_worker_interrupts_and_a_recorded_run_goes_on_from_there(tmp_path):
    optimizer, history = recipes.random_search(choices=CHOICES), History()
    optimizer.record(tmp_path / "run.db")

    def measure(trial):
        if trial.id == 12:
            raise KeyboardInterrupt
        return math.nan if trial.id == 5 else square(trial)

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


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_waits_for_the_optimizer_but_a_second_one_does_not(times):
    done = []

    class Interrupted(Watched):
        def ask(self, t=None, context=None):
            trial = super().ask(t, context)
            if trial.id == 5:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
                done.append(trial.id)
            return trial

    optimizer = Interrupted()
    with Threads(2) as executor, pytest.raises(KeyboardInterrupt):
        go(square, optimizer, executor, 20, max_pending=2)
    assert done == ([5] if times == 1 else [])


def test_signals_are_left_alone_where_they_are_ignored_or_in_other_threads():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Threads(2) as executor, Threads(1) as other:
            history = go(square, Watched(), executor, 5)
            assert other.submit(go, square, Watched(), executor, 5).result().counts["told"] == 5
        assert history.counts["told"] == 5
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ask_that_raises_loses_no_outcome():
    now, optimizer, history = iter([1.0, 2.0, 3.0, 0.0]), Watched(), History()
    with Counting(4) as executor:

        def times():
            t = next(now)
            if t == 0.0:
                # All have an outcome by the time at which the ask raises.
                wait(executor.futures, timeout=10)
            return t

        with pytest.raises(InputDataError, match=r"3\.0"):
            go(square, optimizer, executor, 10, times=times, history=history)
    assert history.counts == {"told": 3, "open": 0}
    check_accounts(optimizer, history)


def test_a_tell_that_raises_is_not_repeated():
    class Broken(Watched):
        def tell(self, trial, Y, Yvar=None):
            self.calls.append(("tried", trial.id))
            if trial.id in (3, 4):
                raise ArithmeticError(f"trial {trial.id} does not fit")
            super().tell(trial, Y, Yvar)

    optimizer, history, begun = Broken(), History(), threading.Barrier(2)

    def measure(trial):
        if trial.id in (3, 4):
            begun.wait(10)
        return 1.0

    with Threads(2) as executor, pytest.raises(ArithmeticError):
        go(measure, optimizer, executor, 4, max_pending=2, history=history)
    assert max(Counter(call[1] for call in optimizer.calls if call[0] == "tried").values()) == 1
    assert history.counts == {"told": 2, "open": 2}
    check_accounts(optimizer, history)


@pytest.mark.slow
def test_what_a_process_begins_after_the_end_does_not_fail():
    class Slow(Watched):
        def tell(self, trial, Y, Yvar=None):
            time.sleep(0.4)
            super().tell(trial, Y, Yvar)

    optimizer, history, now = Slow(), History(), iter([1.0, 2.0, 3.0])
    with processes(1) as executor, pytest.raises(ZeroDivisionError):
        # Trial 3, which the pool does not cancel, begins and ends while the outcome of 1 is told.
        go(
            partial(rests, 0.1),
            optimizer,
            executor,
            9,
            3,
            timeout=60.0,
            times=lambda: next(now, 0) or 1 / 0,
            history=history,
        )
    assert history.counts["failed"] == 0
    check_accounts(optimizer, history)


# Arguments, and the bar.


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"num_trials": 0}, ValueError),
        ({"num_trials": 2.5}, ValueError),
        ({"max_pending": 0}, ValueError),
        ({"max_pending": 1.5}, ValueError),
        ({"timeout": 0.0}, ValueError),
        ({"timeout": math.nan}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"executor": []}, TypeError),
    ],
)
def test_arguments_that_are_refused(wrong, error):
    optimizer = Watched()
    with Threads(1) as executor:
        given = {"executor": executor, "num_trials": 3, "max_pending": 4} | wrong
        with pytest.raises(error):
            run_async(square, optimizer, **given)
        if "executor" not in wrong:
            with pytest.raises(ValueError, match="delay"):
                run(square, optimizer, horizon=2, executor=executor, delay=1.0)
    assert optimizer.calls == []


def test_another_optimizers_history_is_refused_before_an_ask():
    history, another = History(), Watched()
    with Threads(1) as executor:
        go(square, Watched(), executor, 3, history=history)
        with pytest.raises(ValueError, match="history"):
            go(square, another, executor, 3, history=history)
    assert another.calls == []
    assert len(history) == 3


def test_what_cannot_be_sent_to_processes_is_refused():
    optimizer = Watched()
    # Copies of one generator would draw the same noise in each process.
    noisy = drifting_gp(unit_grid(2), RBFKernel(), 0.1, 5, noise_variance=0.1)
    with processes(1) as executor:
        for objective in (lambda trial: 1.0, noisy):
            with pytest.raises(TypeError):
                go(objective, optimizer, executor, 3)
    assert optimizer.calls == []


def test_a_bar_is_shown_on_request(capsys):
    with Threads(2) as executor:
        go(square, Watched(), executor, 3)
        assert capsys.readouterr() == ("", "")
        given = {"num_trials": 5, "max_pending": 2, "label": "here"}
        run_async(partial(goes_wrong, "nan"), Watched(), executor, **given)
    out, err = capsys.readouterr()
    assert out == ""
    for words in ("here", "5/5", "0 open, 2 failed"):
        assert words in err
