"""A journaled run killed with ``kill -9`` at random moments, and what is there afterwards.

Each process opens the run, goes on with it and says what was acknowledged, until it is killed:
while it opens, replays, asks, tells or stores a snapshot. Each outcome that was acknowledged must
be in the journal with the value told. In the end the choices of the whole run are compared with
those of one that was never stopped. Exits with 1 if anything was lost, damaged or differs.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
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


Told = tuple[int, float]
"""Number of a trial, and its outcome."""


def step(playing: Optimizer) -> tuple[list[float] | None, Told | None]:
    """One ask, tell or failure, by the state of the optimizer alone.

    Returns:
        An action that was chosen, or an outcome that was told.
    """
    waiting = playing.open_trials
    if len(waiting) < OPEN:
        return playing.ask().X[0].tolist(), None
    trial = waiting[1]
    if trial.id % 20 == 0:
        playing.fail(trial, "crash")
        return None, None
    outcome = torch.sin(6 * trial.X.sum()).item() + 0.1 * (trial.id % 3 - 1)
    playing.tell(trial, outcome)
    return None, (trial.id, outcome)


def live(path: Path, says: Connection) -> None:
    """Go on with the run for ever; say after each step what it was told in it."""
    snapshot.EVERY = EVERY
    if path.exists():
        playing = Optimizer.open(path)
    else:
        playing = optimizer()
        playing.record(path)
    while True:
        _, told = step(playing)
        says.send(told)


def killed(path: Path, moment: float) -> list[Told | None]:
    """Start a process, kill it at a moment, give all that it said."""
    hears, says = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=live, args=(path, says))
    process.start()
    says.close()
    time.sleep(moment)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    said = []
    try:
        while hears.poll():
            said.append(hears.recv())
    except EOFError:
        pass
    return said


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
    damaged = silent = 0
    acknowledged: dict[int, float] = {}
    lost: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        for _ in range(chosen.kills):
            said = killed(path, draw.uniform(0.02, LONGEST))
            silent += not said
            acknowledged |= dict(told for told in said if told is not None)
            if not path.exists():
                continue
            with JournalReader(path) as journal:
                damaged += journal.damage is not None
                trials = trials_of(journal).set_index("trial")
            found = trials[trials.state == "told"].outcome.to_dict()
            lost |= {number for number, Y in acknowledged.items() if found.get(number) != Y}
        with JournalReader(path) as journal:
            events = journal.num_good
            sessions = len(journal.sessions)
            actions = trials_of(journal).action_0.tolist()
        started = time.perf_counter()
        again = Optimizer.open(path)
        opening = time.perf_counter() - started
        size = sum(file.stat().st_size for file in path.parent.glob("run.db*"))
        whole = optimizer()
        played = [X for _ in range(events) if (X := step(whole)[0]) is not None]
        different = sum(mine != [theirs] for mine, theirs in zip(played, actions, strict=True))
        different += sum(step(again) != step(whole) for _ in range(AFTERWARDS))
    figures = {
        "kills": chosen.kills,
        "killed_before_a_word": silent,
        "openings": sessions,
        "events": events,
        "acknowledged_tells": len(acknowledged),
        "acknowledged_tells_lost": len(lost),
        "damaged_journals": damaged,
        "choices_that_differ": different,
        "choices_compared": len(actions) + AFTERWARDS,
        "seconds_to_open": opening,
        "bytes": size,
    }
    rows = [(name.replace("_", " "), f"{value:.4g}") for name, value in figures.items()]
    show("A run killed at random moments", ("measure", "value"), rows, figures, chosen.json)
    if lost or damaged or different:
        sys.exit(1)


if __name__ == "__main__":
    main()
