"""A journaled run killed with ``kill -9`` at random moments, and what is there afterwards.

Each process opens the run, goes on with it and says what was acknowledged, until it is killed:
while it opens, replays, asks, tells or stores a snapshot. In the end the choices of the whole run
are compared with those of one that was never stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

from tvbo import recipes
from tvbo.journal import JournalReader, snapshot, trials_of
from tvbo.optimizers import Optimizer

ARMS = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
OPEN = 3
EVERY = 40
"""Events between snapshots: so few that many kills fall into the storing of one."""

LONGEST = 1.0
"""Seconds that a process lives, at most, after it was started."""

AFTERWARDS = 50
"""Further choices compared after the last kill."""


def optimizer() -> Optimizer:
    """The optimizer that plays."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    return recipes.tv_gp_ucb(
        choices=ARMS, covar_module=kernel, forgetting_rate=0.03, noise_variance=0.01
    )


def step(playing: Optimizer) -> list[float] | None:
    """One ask, tell or failure, by the state of the optimizer alone; gives an action chosen."""
    waiting = playing.open_trials
    if len(waiting) < OPEN:
        return playing.ask().X[0].tolist()
    trial = waiting[1]
    if trial.id % 20 == 0:
        playing.fail(trial, "crash")
    else:
        playing.tell(trial, torch.sin(6 * trial.X.sum()).item() + 0.1 * (trial.id % 3 - 1))
    return None


def live(path: Path, says: Connection) -> None:
    """Go on with the run for ever; say after each step how many outcomes it has been told."""
    snapshot.EVERY = EVERY
    if path.exists():
        playing = Optimizer.open(path)
    else:
        playing = optimizer()
        playing.record(path)
    while True:
        step(playing)
        says.send(playing.closed.num_told)


def killed(path: Path, moment: float) -> int:
    """Start a process, kill it at a moment, give the last number it said."""
    hears, says = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=live, args=(path, says))
    process.start()
    says.close()
    time.sleep(moment)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    told = 0
    try:
        while hears.poll():
            told = hears.recv()
    except EOFError:
        pass
    return told


def main() -> None:
    """Kill, compare, print a table, save JSON."""
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=100)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    # What is imported at first use is imported before the processes are made.
    warm = optimizer()
    for _ in range(2 * OPEN):
        step(warm)
    draw = random.Random(0)
    lost = damaged = silent = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        for _ in range(chosen.kills):
            told = killed(path, draw.uniform(0.02, LONGEST))
            silent += told == 0
            if not path.exists():
                continue
            with JournalReader(path) as journal:
                damaged += journal.damage is not None
                lost += max(0, told - int((trials_of(journal).state == "told").sum()))
        with JournalReader(path) as journal:
            events = journal.num_good
            sessions = len(journal.sessions)
            actions = trials_of(journal).action_0.tolist()
        started = time.perf_counter()
        again = Optimizer.open(path)
        opening = time.perf_counter() - started
        size = sum(file.stat().st_size for file in path.parent.glob("run.db*"))
        whole = optimizer()
        played = [X for _ in range(events) if (X := step(whole)) is not None]
        different = sum(mine != [theirs] for mine, theirs in zip(played, actions, strict=True))
        different += sum(step(again) != step(whole) for _ in range(AFTERWARDS))
    figures = {
        "kills": chosen.kills,
        "killed_before_a_word": silent,
        "openings": sessions,
        "events": events,
        "acknowledged_tells_lost": lost,
        "damaged_journals": damaged,
        "choices_that_differ": different,
        "choices_compared": len(actions) + AFTERWARDS,
        "seconds_to_open": opening,
        "bytes": size,
    }
    rows = [(name.replace("_", " "), f"{value:.4g}") for name, value in figures.items()]
    show("A run killed at random moments", ("measure", "value"), rows, figures, chosen.json)


if __name__ == "__main__":
    main()
