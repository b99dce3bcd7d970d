"""A run that one process after another takes further, until it is killed with ``kill -9``."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import time
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import torch
from run_cases import made, outcome

from tvbo.optimizers import Optimizer
from tvbo.storage import read_run

KIND = "streaming"
WORDS = 2
"""Number of calls after which a process may be killed, so that a busy machine gets somewhere."""


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


def killed(path: Path, seconds: float) -> list[tuple]:
    """Have a process take a run further, kill it after a time, and return what it said."""
    hears, says = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=live, args=(path, says), daemon=True)
    process.start()
    says.close()
    said = []
    # It may have more to say than the buffer of a pipe holds.
    with suppress(EOFError):
        said += [hears.recv() for _ in range(random.randrange(WORDS + 1))]
        time.sleep(seconds)
        process.kill()
        while True:
            said.append(hears.recv())
    process.join()
    return said


def check(path: Path, said: list[tuple], kills: int) -> None:
    """Check that what was acknowledged is in a run, once, and little else."""
    if not path.exists():
        assert not said
        return
    rows = read_run(path)
    trials = {trial["id"]: trial for trial in rows.trials}
    for call, number, what in said:
        if call == "ask":
            assert trials[number]["key"] == what
        elif call == "tell":
            assert rows.outcomes[number][0] == (what,)
        elif call == "fail":
            assert (trials[number]["state"], trials[number]["reason"]) == ("failed", what)
    # Each process may have been killed before it could say what it had done.
    counts = {call: [word[0] for word in said].count(call) for call in ("ask", "tell", "fail")}
    for call, state in (("tell", "told"), ("fail", "failed")):
        assert rows.counts[state] - counts[call] in range(kills + 1)
    assert len(trials) - counts["ask"] in range(kills + 1)
