"""Several processes take one run further at once."""

import os
import pickle
import sqlite3
import time
from contextlib import closing

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from killed_runs import KIND, check, share
from run_cases import made, outcome

from tvbo.optimizers import Optimizer
from tvbo.storage import RunBusyError, read_run


@pytest.mark.slow_cases("50-8")
@pytest.mark.parametrize(("rounds", "kills"), [(6, 2), (50, 8)])
def test_four_processes_share_a_run(run, rounds, kills):
    optimizer = made(KIND)
    optimizer.record(run)
    optimizer.ask()
    said = share(str(run), rounds, kills)
    check(run, said, kills + 1)
    assert len({number for call, number, _ in said if call == "tell"}) == 4 * rounds
    # Each trial was asked for once; all outcomes are in every process that goes on.
    assert optimizer.ask().id == len(read_run(run).trials)
    assert optimizer.trial_log.num_told == read_run(run).counts["told"] >= 4 * rounds


def test_who_is_at_work_is_named(run):
    optimizer = made("random")
    optimizer.record(run)
    optimizer.ask()
    waits_not = Optimizer.open(run, wait=0)
    with closing(sqlite3.connect(run, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunBusyError):
            waits_not.ask()
        with pytest.raises(RunBusyError):
            read_run(run, wait=0)
        other.execute("ROLLBACK")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunBusyError, match=f"process {os.getpid()}"):
            waits_not.ask()
        # Reading goes on.
        assert len(read_run(run, wait=0).trials) == waits_not.num_trials == 1
    assert waits_not.ask().id == 2


def test_a_forked_process_goes_on_beside_its_parent(run):
    optimizer = made(KIND)
    optimizer.record(run)
    trial = optimizer.ask()
    in_a_process(lambda: (optimizer.tell(trial, outcome(optimizer, trial)), optimizer.ask()))
    with pytest.raises(ValueError, match="outcome already"):
        optimizer.tell(trial, 0.0)
    assert optimizer.ask().id == 3


def test_copies_are_not_recorded(run):
    optimizer = made(KIND)
    optimizer.record(run)
    optimizer.ask()
    copy = pickle.loads(pickle.dumps(optimizer))
    copy.tell(1, 0.5)
    copy.ask()
    assert read_run(run).counts["open"] == 1
    with optimizer:
        optimizer.tell(1, 0.25)
    with pytest.raises(ValueError, match="closed"):
        optimizer.ask()
    assert [trial.Y for trial in read_run(run).trials] == [[0.25]]


def test_a_change_that_fails_changes_nothing(run):
    optimizer = made("learned")
    optimizer.record(run)
    optimizer.tell(optimizer.ask(), 1.0)
    before = read_run(run)
    with pytest.raises(InputDataError, match="t=-1"):
        optimizer.ask(t=-1.0)
    with pytest.raises(ValueError, match="trial 7"):
        optimizer.tell(7, 1.0)
    assert read_run(run) == before
    assert optimizer.ask().id == 2


def in_a_process(work) -> None:
    """Do some work in a forked process."""
    if (child := os.fork()) == 0:
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_processes_in_two_time_zones(run, monkeypatch):
    """Summer time begins between their asks, in the zone of the run."""
    made("hours").record(run)

    def ask_and_tell(t: str) -> None:
        time.tzset()
        optimizer = Optimizer.open(run)
        optimizer.tell(optimizer.ask(t=t), 1.0)

    zones = "Asia/Tokyo", "America/Los_Angeles"
    times = "2026-03-29T00:30:00Z", "2026-03-29T02:30:00.000000123+01:00"
    for zone, t in zip(zones, times, strict=True):
        monkeypatch.setenv("TZ", zone)
        in_a_process(lambda t=t: ask_and_tell(t))
    rows = read_run(run)
    assert [rows.time_of(trial) for trial in rows.trials] == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:30:00+02:00",
    ]
    stamps = rows.to_frame()["t"]
    assert str(stamps.dt.tz) == "Europe/Berlin"
    assert stamps.diff().iloc[1].value == 3600 * 10**9 + 123
    assert Optimizer.open(run).ask(t="2026-03-29T01:30:00.000000123Z").time == stamps.iloc[1]
