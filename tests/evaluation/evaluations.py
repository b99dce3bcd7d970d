"""Problem functions that other processes import."""

import math
import os
import signal
import sys
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path


def evaluate(folder, trial):
    """Of twenty trials one raises and one gives NaN; five of 200 kill their process, once each."""
    if trial.id % 40 == 20:
        kill_once(os.getpid(), Path(folder) / str(trial.id))
    time.sleep(0.005)
    if trial.id % 20 == 7:
        raise RuntimeError("the reactor is cold")
    return math.nan if trial.id % 20 == 13 else trial.X.square().sum()


def double_unless_negative(job):
    """A job of a reproduction."""
    if job < 0:
        raise ValueError(f"Got {job}.")
    return 2 * job


def kill(folder, trial):
    """Five of a hundred trials kill their process, once each."""
    if trial.id % 20 == 10:
        kill_once(os.getpid(), Path(folder) / str(trial.id))
    time.sleep(0.01)
    return 1.0


def kill_another(pid, mark, trial):
    """One of the trials kills another process, once."""
    if trial.id == 40:
        kill_once(pid, Path(mark))
    time.sleep(0.01)
    return 1.0


def kill_once(pid, mark):
    if not mark.exists():
        mark.touch()
        os.kill(pid, signal.SIGKILL)


def leaves(how, trial):
    """Leave in a way that an executor may take for its own, where the trial's number is even."""
    if trial.id % 2:
        return 1.0
    if how == "exit":
        sys.exit(3)
    raise {"broken": BrokenProcessPool("of the objective"), "cancelled": CancelledError()}[how]


def hangs(trial):
    time.sleep(6.0)
    return 1.0


def signal_begin(folder, trial):
    """Say once that the run is under way."""
    if trial.id == 20:
        (Path(folder) / "begun").touch()
    time.sleep(0.05)
    return 1.0
