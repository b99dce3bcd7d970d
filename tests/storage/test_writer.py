"""What is on disk when a call has returned, and what happens where it did not."""

import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo import recipes
from tvbo.optimizers import Optimizer, RefitEvery, TrialError
from tvbo.storage import JournalError, JournalReader


def kinds(run):
    with JournalReader(run) as journal:
        assert journal.damage is None
        return [record.kind for _, record in journal.events()]


def test_what_was_acknowledged_is_on_disk(run, make_streaming):
    optimizer = make_streaming()
    optimizer.record(run)
    trial = optimizer.ask()
    assert kinds(run) == ["ask"]
    optimizer.tell(trial, 0.1, Yvar=0.2)
    optimizer.fail(optimizer.ask(), "a crash")
    optimizer.expire(optimizer.attach([[0.0]], t=3.0))
    assert kinds(run) == ["ask", "tell", "ask", "fail", "attach", "expire"]
    with JournalReader(run) as journal:
        records = [record for _, record in journal.events()]
    # Not representable in decimal, and exact nevertheless.
    assert (records[1].Y, records[1].Yvar) == ((0.1,), (0.2,))
    assert list(records[0].X) == trial.X[0].tolist()
    assert records[3].reason == "a crash"


def test_each_fit_is_written_once_and_told_once(run):
    """Not with each ask between two fits, nor with each action of a batch."""
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)], initial=8, refit=RefitEvery(5))
    told = []
    optimizer.add_listener(on_fit=told.append)
    optimizer.record(run)
    for number in range(20):
        optimizer.tell(optimizer.ask(), math.sin(number))
    optimizer.ask(q=2)
    found = kinds(run)
    # Of 8, 13 and 18 outcomes.
    assert [found[:i].count("tell") for i, kind in enumerate(found) if kind == "refit"] == [
        8,
        13,
        18,
    ]
    assert len(told) == 3


def test_what_is_refused_is_not_written(run):
    optimizer = recipes.random_search(choices=[[0.0], [1.0]])
    optimizer.record(run)
    trial = optimizer.ask()
    with pytest.raises(InputDataError):
        optimizer.tell(trial, float("nan"))
    with pytest.raises(TrialError):
        optimizer.tell(5, 0.5)
    with pytest.raises(InputDataError):
        optimizer.ask(t=-1.0)
    assert kinds(run) == ["ask"]
    optimizer.tell(trial, 0.5)
    assert kinds(run) == ["ask", "tell"]


def test_variances_that_are_refused_leave_the_run_usable(run, make_streaming, play):
    """Known for one outcome and not for another: found out when it is taken in."""
    optimizer, whole = make_streaming(), make_streaming()
    optimizer.record(run)
    for each in (optimizer, whole):
        play(each, 5)
    with pytest.raises(InputDataError):
        optimizer.tell(optimizer.open_trials[0], 0.5, Yvar=0.1)
    assert play(optimizer, 9) == play(whole, 9)
    optimizer.close()
    assert play(Optimizer.open(run), 9) == play(whole, 9)


@pytest.mark.parametrize("end", ["fail", "expire"])
def test_a_reason_is_words(run, make_random, end):
    optimizer = make_random()
    optimizer.record(run)
    trial = optimizer.ask()
    with pytest.raises(TypeError):
        getattr(optimizer, end)(trial, RuntimeError("boom"))
    getattr(optimizer, end)(trial, "no file caf\udce9")
    assert optimizer.trial_log.newest[0].reason == "no file caf\\udce9"
    optimizer.close()
    assert Optimizer.open(run).trial_log.newest[0].reason == "no file caf\\udce9"


def test_numbers_of_trials(make_random):
    optimizer = make_random()
    optimizer.ask()
    with pytest.raises(TrialError):
        optimizer.tell(True, 0.5)
    with pytest.raises(TrialError):
        optimizer.tell(1.0, 0.5)
    optimizer.tell(np.int64(1), 0.5)
    assert optimizer.trial_log.num_told == 1


@pytest.mark.parametrize("then", ["ask", "tell"])
def test_a_generator_that_others_draw_from_is_found_out_at_once(
    run, make_random, generator, play, then
):
    optimizer, whole = make_random(), make_random()
    optimizer.record(run)
    play(optimizer, 4)
    play(whole, 4)
    trial = optimizer.open_trials[0]
    torch.rand(1, generator=optimizer.generator)
    with pytest.raises(JournalError):
        optimizer.ask() if then == "ask" else optimizer.tell(trial, 0.5)
    with pytest.raises(JournalError):
        optimizer.ask()
    assert play(Optimizer.open(run), 9) == play(whole, 9)


def test_a_full_disk_is_said_and_nothing_is_lost(run, make_random, play):
    optimizer, whole = make_random(), make_random()
    optimizer.record(run)
    told = play(optimizer, 6)
    assert told == play(whole, 6)
    [pages] = optimizer._event_sink._connection.execute("PRAGMA page_count").fetchone()
    optimizer._event_sink._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError):
        play(optimizer, 1000)
    with pytest.raises(JournalError, match="interrupted"):
        optimizer.ask()
    again = Optimizer.open(run)
    play(whole, len(kinds(run)) - 6)
    assert play(again, 9) == play(whole, 9)


def test_a_closed_optimizer_changes_no_more(run, make_random):
    optimizer = make_random()
    optimizer.record(run)
    optimizer.close()
    optimizer.close()
    with pytest.raises(JournalError):
        optimizer.ask()


def test_a_forked_process_may_not_write(run, make_random, play):
    optimizer = make_random()
    optimizer.record(run)
    play(optimizer, 4)
    child = os.fork()
    if child == 0:
        try:
            optimizer.ask()
        except JournalError as error:
            del optimizer
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    play(optimizer, 4)
    assert len(kinds(run)) == 8


def in_the_middle_of(optimizer, patch, act):
    """Ask in another thread; do something here before it has ended."""
    inside, may_end = threading.Event(), threading.Event()
    choose = type(optimizer)._choose

    def slow(*arguments):
        inside.set()
        assert may_end.wait(20)
        return choose(*arguments)

    patch.setattr(type(optimizer), "_choose", slow)
    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool:
        asked = pool.submit(optimizer.ask)
        try:
            assert inside.wait(20)
            act()
        finally:
            may_end.set()
        return asked.result()


def test_a_second_thread_is_refused_and_the_journal_stays_whole(
    run, make_streaming, play, monkeypatch, tmp_path
):
    whole, optimizer = make_streaming(), make_streaming()
    optimizer.record(run)
    for each in (whole, optimizer):
        play(each, 5)
    trial = optimizer.open_trials[0]

    def refused():
        for call in (
            optimizer.ask,
            lambda: optimizer.attach([[0.0]], t=9.0),
            lambda: optimizer.tell(trial, 0.5),
            lambda: optimizer.fail(trial, "a crash"),
            lambda: optimizer.expire(trial),
            lambda: optimizer.expire_overdue(99.0, 1.0),
            optimizer.recommend,
            lambda: optimizer.record(tmp_path / "other.db"),
            optimizer.close,
        ):
            with pytest.raises(RuntimeError):
                call()

    with monkeypatch.context() as patch:
        in_the_middle_of(optimizer, patch, refused)
    whole.ask()
    assert play(optimizer, 6) == play(whole, 6)
    optimizer.close()
    assert not (tmp_path / "other.db").exists()
    with JournalReader(run) as journal:
        assert (journal.damage, journal.num_good) == (None, 12)
    assert play(Optimizer.open(run, like=make_streaming()), 6) == play(whole, 6)


def test_threads_that_call_as_they_like(run, make_random):
    """A lock of one's own is one way; to try again is another."""
    optimizer = make_random()
    optimizer.record(run)

    def ask_until_taken(number):
        while True:
            try:
                return optimizer.ask(t=1.0).id
            except RuntimeError:
                time.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(ask_until_taken, range(40)))
    assert sorted(numbers) == list(range(1, 41))
    optimizer.close()
    assert len(Optimizer.open(run, like=make_random()).open_trials) == 40
