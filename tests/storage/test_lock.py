"""One writer at a time, however the one before it ended."""

import gc
import os
import signal

import pytest

from tvbo.optimizers import Optimizer
from tvbo.storage import JournalBusyError, JournalError, JournalReader


def in_a_child(work) -> int:
    """Exit code of a forked process that does some work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except JournalError:
            os._exit(3)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_second_optimizer_of_this_process_is_refused(run, make_random, play):
    optimizer = make_random()
    optimizer.record(run)
    with pytest.raises(JournalBusyError):
        Optimizer.open(run)
    # It was no harm to the first.
    play(optimizer, 3)


def test_another_process_is_refused(run, make_random, tmp_path):
    run.with_name("unrelated").touch()
    code = in_a_child(lambda: keep_open(run, make_random, tmp_path))
    assert code == 0


def keep_open(run, make, folder):
    """Record here, and try to open in a child that inherits nothing of it."""
    waits, tells = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(waits[0], 1)
        code = 1
        try:
            Optimizer.open(run)
        except JournalError as error:
            code = 7 if "nobody else writes" in str(error) else 2
        os._exit(code)
    optimizer = make()
    optimizer.record(run)
    optimizer.ask()
    os.write(waits[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for end in (*waits, *tells):
        os.close(end)


def test_a_killed_process_lets_go(run, make_random):
    def record_and_die():
        optimizer = make_random()
        optimizer.record(run)
        optimizer.ask()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(record_and_die) == -signal.SIGKILL
    assert len(Optimizer.open(run).open_trials) == 1


def test_a_forked_worker_that_lives_on_does_not_hold_the_lock(run, make_random):
    """As a pool's worker does whose parent was killed."""
    ends = os.pipe()

    def record_fork_and_die():
        optimizer = make_random()
        optimizer.record(run)
        optimizer.ask()
        if os.fork() == 0:
            os.close(ends[1])
            os.read(ends[0], 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(record_fork_and_die) == -signal.SIGKILL
    optimizer = Optimizer.open(run)
    assert len(optimizer.open_trials) == 1
    os.close(ends[1])
    os.close(ends[0])


def test_closing_another_handle_of_its_file_keeps_the_lock(run, make_random):
    """As a copy of the folder does, which this process makes."""
    optimizer = make_random()
    optimizer.record(run)
    run.with_name("run.db-lock").read_bytes()

    def open_it():
        Optimizer.open(run)

    assert in_a_child(open_it) == 3
    with pytest.raises(JournalError):
        Optimizer.open(run)


def test_closing_lets_go(run, make_random):
    optimizer = make_random()
    optimizer.record(run)
    optimizer.close()
    Optimizer.open(run).close()


def test_an_optimizer_that_is_gone_lets_go(run, make_random):
    optimizer = make_random()
    optimizer.record(run)
    del optimizer
    gc.collect()
    Optimizer.open(run).close()


def test_a_refused_opening_lets_go(recorded, make_streaming, make_random):
    run = recorded(4)
    with pytest.raises(JournalError):
        Optimizer.open(run, like=make_streaming())
    Optimizer.open(run, like=make_random())


def test_reading_is_allowed_meanwhile(run, make_random, play):
    optimizer = make_random()
    optimizer.record(run)
    play(optimizer, 5)
    looked_at = Optimizer.open(run, read_only=True)
    assert len(looked_at.open_trials) == len(optimizer.open_trials)
    with JournalReader(run) as journal:
        play(optimizer, 5)
        assert journal.num_good == 5
