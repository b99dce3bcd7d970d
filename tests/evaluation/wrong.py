"""Objectives that go wrong, in a module that other processes import."""

import asyncio
import math
import os
import signal
import sys
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path


class CodedError(Exception):
    """Pickles, but cannot be unpickled."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class WordlessError(Exception):
    def __str__(self):
        raise ValueError


REASONS = {
    "exit": "SystemExit: 3",
    "local": "Local: ",
    "no outcome": "InputDataError: ",
    "nan": "InputDataError: ",
    "coded": "CodedError: 7: cold",
    "wordless": "WordlessError",
    "broken": "BrokenProcessPool: not of this pool",
    "cancelled": "CancelledError: ",
    "awaited": "CancelledError: ",
}
"""How the reason begins with which a trial fails, by what happens in the objective."""


def goes_wrong(kind, trial):
    """Go wrong where the number of the trial is even."""
    if trial.id % 2:
        return trial.X.square().sum()
    if kind == "exit":
        sys.exit(3)
    if kind == "local":
        raise type("Local", (Exception,), {})(lambda: None)
    if kind == "no outcome":
        return {"loss": lambda: None}
    if kind == "nan":
        return math.nan
    raise {
        "coded": CodedError(7, "cold"),
        "wordless": WordlessError(),
        "broken": BrokenProcessPool("not of this pool"),
        "cancelled": CancelledError(),
        "awaited": asyncio.CancelledError(),
    }[kind]


def dies(trial):
    """One of twenty trials ends its process, each time that it is evaluated."""
    if trial.id % 20 == 10:
        os._exit(1)
    time.sleep(0.01)
    return 1.0


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


def rests(seconds, trial):
    time.sleep(seconds)
    return 1.0


def signal_begin(folder, trial):
    """Say once that the run is under way."""
    if trial.id == 20:
        (Path(folder) / "begun").touch()
    time.sleep(0.05)
    return 1.0
