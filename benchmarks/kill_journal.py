"""A journaled run killed with ``kill -9`` at random times, and what is preserved.

Each process opens the run, continues it and reports what was acknowledged, until it is killed:
while it opens, replays, asks, tells or stores a snapshot. Each acknowledged outcome must be in the
journal with the value told. At the end the choices of the whole run are compared with those of a
run that was never stopped. Exits with 1 if anything was lost, damaged or differs.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from shared import parser, show, squared_exponential

from tvbo import recipes
from tvbo.optimizers import Hallucinate, Optimizer, Trial
from tvbo.storage import JournalReader, trials_of, writer

ARMS = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
OPEN = 3
EVERY = 40
"""Events between snapshots: few, so that many kills occur while one is stored."""

LONGEST = 1.0
"""Largest lifetime of a process in seconds."""

AFTERWARDS = 50
"""Number of further choices compared after the last kill."""


def optimizer() -> Optimizer:
    """Return the optimizer of the run."""
    return recipes.tv_gp_ucb(
        choices=ARMS,
        covar_module=squared_exponential(0.2),
        forgetting_rate=0.03,
        noise_variance=0.01,
        pending=Hallucinate(),
    )


Told = tuple[int, float]
"""Id of a trial, and its outcome."""


def step(playing: Optimizer) -> tuple[list[float] | None, Told | None]:
    """Run one ask, tell or failure, determined by the state of the optimizer.

    Returns:
        The chosen action or None, and the told outcome or None.
    """
    waiting = playing.open_trials
    if len(waiting) < OPEN:
        return playing.ask().X[0].tolist(), None
    trial = waiting[1]
    if trial.id % 20 == 0:
        playing.fail(trial, "crash")
        return None, None
    outcome = value(trial)
    playing.tell(trial, outcome)
    return None, (trial.id, outcome)


def live(path: Path, says: Connection) -> None:
    """Continue the run forever; report the told outcome after each step."""
    writer.EVERY = EVERY
    if path.exists():
        playing = Optimizer.open(path, like=optimizer(), progress=False)
    else:
        playing = optimizer()
        playing.record(path)
    while True:
        _, told = step(playing)
        says.send(told)


def value(trial: Trial) -> float:
    """Return the outcome of a trial, determined by its action and id."""
    return torch.sin(6 * trial.X.sum()).item() + 0.1 * (trial.id % 3 - 1)


def killed(path: Path, moment: float) -> list[Told | None]:
    """Start a process, kill it after some seconds, return all its reports."""
    hears, says = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=live, args=(path, says), daemon=True
    )
    process.start()
    says.close()
    time.sleep(moment)
    process.kill()
    said = []
    # It may have more reports than the buffer of a pipe holds.
    with suppress(EOFError):
        while True:
            said.append(hears.recv())
    process.join()
    return said


def main() -> None:
    """Kill, compare, print a table, save JSON."""
    chosen = parser(__doc__, kills=100).parse_args()
    torch.set_num_threads(1)
    # Modules that are imported at first use are imported before the processes are forked.
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
        again = Optimizer.open(path, like=optimizer(), progress=False)
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
    rows = [{"measure": name, "value": value} for name, value in figures.items()]
    columns = {"measure": "{measure}", "value": "{value:.4g}"}
    show("A run killed at random moments", columns, rows, chosen.json, figures)
    if lost or damaged or different:
        sys.exit(1)


if __name__ == "__main__":
    main()
