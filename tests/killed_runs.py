"""A run that one process after another takes further, until it is killed with ``kill -9``."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import torch
from run_cases import made, outcome

from tvbo.optimizers import Optimizer, TrialError
from tvbo.storage import StorageUnavailableError, read_run

KIND = "streaming"


def live(path: Path, says) -> None:
    """Begin a run or go on with it, forever; say what was acknowledged, after each call."""
    torch.set_num_threads(1)
    draw = random.Random(time.time_ns())
    who = draw.randrange(2**62)
    if path.exists():
        optimizer = Optimizer.open(path)
    else:
        optimizer = made(KIND)
        optimizer.record(path)
    for number in count():
        waiting = optimizer.open_trials
        call = draw.choice(("ask", "ask", "tell", "tell", "fail", "status", "backup"))
        if call == "ask" and len(waiting) < 4:
            key = f"{who} {number}"
            says.send(("ask", optimizer.ask(key=key).id, key))
        elif call in ("tell", "fail") and waiting:
            trial = draw.choice(waiting)
            if call == "tell":
                optimizer.tell(trial, Y := outcome(optimizer, trial))
                says.send(("tell", trial.id, Y))
            else:
                optimizer.fail(trial, "a crash")
                says.send(("fail", trial.id, "a crash"))
        elif call == "status":
            says.send(("status", len(read_run(path).trials), None))
        elif call == "backup":
            copy = path.with_name(f"{who}.copy")
            with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(copy)) as two:
                one.backup(two)
            says.send(("backup", len(read_run(copy).trials), None))
            copy.unlink()


def killed(path: Path, seconds: float, words: int) -> list[tuple]:
    """Have a process take a run further, and kill it.

    Args:
        path: The run.
        seconds: When it is killed, after its first words.
        words: Number of these, which a busy machine may take long for.

    Returns:
        What was acknowledged.
    """
    hears, says = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=live, args=(path, says), daemon=True)
    process.start()
    says.close()
    said = []
    # It may have more to say than the buffer of a pipe holds.
    with suppress(EOFError):
        said += [hears.recv() for _ in range(words)]
        time.sleep(seconds)
        process.kill()
        while True:
            said.append(hears.recv())
    process.join()
    return said


def check(url: str | Path, said: list[tuple], kills: int) -> None:
    """Check that what was acknowledged is in a run, once, and little else."""
    if isinstance(url, Path) and not url.exists():
        assert not said
        return
    rows = read_run(url)
    trials = {trial.id: trial for trial in rows.trials}
    for call, number, what in said:
        if call == "ask":
            assert trials[number].key == what
        elif call == "tell":
            assert [*trials[number].Y] == [what]
        elif call == "fail":
            assert (trials[number].state, trials[number].reason) == ("failed", what)
    # Each process may have been killed before it could say what it had done.
    counts = {call: [word[0] for word in said].count(call) for call in ("ask", "tell", "fail")}
    for call, state in (("tell", "told"), ("fail", "failed")):
        assert rows.counts[state] - counts[call] in range(kills + 1)
    assert len(trials) - counts["ask"] in range(kills + 1)


def take_further(url: str, rounds: int, says) -> None:
    """Ask and tell, and say so; a call is made again where the database was away."""
    torch.set_num_threads(1)
    optimizer = Optimizer.open(url)
    for number in range(rounds):
        key = f"{os.getpid()} {number}"
        trial = _retried(partial(optimizer.ask, key=key))
        says.send(("ask", trial.id, key))
        # It may have been told before the database was away.
        with suppress(TrialError):
            _retried(partial(optimizer.tell, trial, outcome(optimizer, trial)))
        says.send(("tell", trial.id, outcome(optimizer, trial)))
    os._exit(0)


def _retried(call):
    while True:
        with suppress(StorageUnavailableError):
            return call()


def share(url: str, rounds: int, kills: int = 0, events: Sequence[Callable] = ()) -> list[tuple]:
    """Have four processes take a run further at once, each by some rounds.

    Args:
        url: The run.
        rounds: Asks and tells of each process.
        kills: How often one of them is killed, and another takes its place.
        events: What else happens meanwhile.

    Returns:
        What was acknowledged.
    """
    context, said = multiprocessing.get_context("fork"), []
    going: dict = {}

    def start(left: int) -> None:
        hears, says = multiprocessing.Pipe(duplex=False)
        process = context.Process(target=take_further, args=(url, left, says), daemon=True)
        process.start()
        says.close()
        going[hears] = [process, left]

    for _ in range(4):
        start(rounds)
    total = 8 * rounds
    # At even distances, by the number of what was said.
    moments = [(total * (i + 1) // (kills + 1), None) for i in range(kills)]
    moments += [(total * (i + 1) // (len(events) + 1), each) for i, each in enumerate(events)]
    moments.sort(key=lambda each: -each[0])
    while going:
        for hears in multiprocessing.connection.wait(list(going)):
            process, left = going[hears]
            try:
                said.append(hears.recv())
                going[hears][1] -= said[-1][0] == "tell"
            except EOFError:
                process.join()
                del going[hears]
                if left > 0:
                    assert process.exitcode == -signal.SIGKILL, process.exitcode
                    start(left)
        while moments and moments[-1][0] <= len(said):
            if (event := moments.pop()[1]) is not None:
                event()
            elif going:
                random.choice(list(going.values()))[0].kill()
    return said
