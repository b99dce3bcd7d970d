"""Runs whose process is killed at each of its operations on files, and what is left of them.

Started with a library that kills (``kill_points.c``) in ``LD_PRELOAD``, and a call. Prints how many
runs went on, and how many did not, as they may if they were torn as well.
"""

import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from run_cases import made, outcome

from tvbo.optimizers import Optimizer
from tvbo.storage import StorageError, read_run

torch.set_num_threads(1)
KIND = "streaming"


def killed(work: Callable[[], object], operations: int) -> bool:
    """Whether a process that does some work is killed at one of its operations on files."""
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).arm(operations)
            work()
        finally:
            ctypes.CDLL(None).arm(0)
            error = sys.exc_info()[1]
            traceback.print_exception(error)
            os._exit(0 if error is None else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"exit code {code} at operation {operations}"
    return code != 0


def goes_on(path: Path) -> int:
    """Number of trials of a run, which is taken further."""
    optimizer = Optimizer.open(path)
    trials = optimizer.num_trials
    for each in (*optimizer.open_trials, optimizer.ask()):
        optimizer.tell(each, outcome(optimizer, each))
    states = [each.state for each in read_run(path).trials]
    assert states == ["told"] * (trials + 1), states
    return trials


def told(path: Path) -> dict[int, tuple]:
    """Outcomes by trial."""
    return {each.id: tuple(each.Y) for each in read_run(path).trials if each.Y}


def create(folder: Path) -> tuple[int, int]:
    """Begin a run, killed at each operation."""
    for operations in count(1):
        path = folder / f"{operations}.db"
        is_killed = killed(lambda path=path: made(KIND).record(path), operations)
        if not path.exists():
            made(KIND).record(path)
        assert goes_on(path) == 0
        if not is_killed:
            break
    return operations - 1, 0


def change(folder: Path, call: str, cuts: random.Random | None = None) -> tuple[int, int]:
    """Change a run, killed at each operation.

    Args:
        folder: Where its files lie.
        call: ``"ask"`` or ``"tell"``.
        cuts: Where the journal is torn afterwards, as by a power cut; None: it is not.
    """
    first = folder / "first.db"
    optimizer = made(KIND)
    optimizer.record(first)
    for _ in range(3):
        optimizer.tell(trial := optimizer.ask(), outcome(optimizer, trial))
    trial = optimizer.ask()
    known, lost = told(first), 0

    def work(path: Path) -> None:
        again = Optimizer.open(path)
        if call == "ask":
            again.ask()
        else:
            again.tell(trial.id, 0.25)

    for operations in count(1):
        path = folder / f"{operations}.db"
        shutil.copy(first, path)
        is_killed = killed(lambda path=path: work(path), operations)
        if cuts is not None:
            tear(path, cuts)
        try:
            found, trials = told(path), goes_on(path)
        except StorageError as error:
            if cuts is None or "\n" in str(error):
                raise
            lost += 1
        else:
            assert found in (known, {**known, 4: (0.25,)}), found
            assert trials in ((4, 5) if call == "ask" else (4,)), trials
        if not is_killed:
            break
    return operations - 1 - lost, lost


def tear(path: Path, cuts: random.Random) -> None:
    """Cut off an end of the journal, or lose one of its sectors."""
    journal = path.with_name(path.name + "-journal")
    if journal.exists():
        data = bytearray(journal.read_bytes())
        place = cuts.randrange(len(data) + 1)
        if cuts.random() < 0.5:
            del data[place:]
        else:
            data[place : place + 512] = bytes(len(data[place : place + 512]))
        journal.write_bytes(data)


def main() -> None:
    [call] = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        if call == "create":
            done = create(Path(name))
        elif call == "torn":
            done = change(Path(name), "tell", random.Random())
        else:
            done = change(Path(name), call)
    sys.stdout.write("{} {}\n".format(*done))


if __name__ == "__main__":
    main()
