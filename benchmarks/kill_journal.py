"""Journaled runs killed with ``kill -9``, or interrupted, at random times, and what is preserved.

Each process opens the run, continues it and reports what was acknowledged, until it is killed:
while it opens, replays, asks, tells or stores a snapshot. Each acknowledged outcome must be in the
journal with the value told. At the end the choices of the whole run are compared with those of a
run that was never stopped.

Another run, of :func:`tvbo.run_async`, is interrupted by SIGINT. All that it was told must
be in the journal, all that is not must be open in the next process, and at the end the whole run is
replayed and each choice compared. Exits with 1 if anything was lost, damaged or differs.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from shared import parser, show, squared_exponential

from tvbo import recipes
from tvbo.evaluation import History, run_async
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
    """Return the outcome of a trial of the interrupted run, determined by its action and id."""
    return torch.sin(6 * trial.X.sum()).item() + 0.1 * (trial.id % 3 - 1)


def evaluate(trial: Trial) -> float:
    """Wait and return the outcome; some trials take longer."""
    time.sleep(0.002 * (1 + trial.id % 5))
    return value(trial)


def live_until_interrupted(path: Path, says: Connection) -> None:
    """Continue the run; when interrupted, report what was told and what is open."""
    # A job that a shell runs in the background ignores interrupts, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    history = History()
    try:
        resumed = path.exists()
        playing = Optimizer.open(path, like=optimizer(), progress=False) if resumed else optimizer()
        if not resumed:
            playing.record(path)
        says.send(None)
        with ThreadPoolExecutor(OPEN) as executor:
            run_async(
                evaluate,
                playing,
                executor,
                num_trials=10**6,
                max_pending=OPEN,
                history=history,
                progress=False,
            )
    except KeyboardInterrupt:
        told = {r.trial.id: r.reward for r in history.rounds if r.status == "told"}
        says.send((told, [trial.id for trial in playing.open_trials]))


def killed(path: Path, moment: float) -> list[Told | None]:
    """Start a process, kill it after some seconds, return all its reports."""
    process, hears = started(live, path)
    time.sleep(moment)
    return ended(process, hears, signal.SIGKILL)


def interrupted(path: Path, moment: float) -> tuple[dict[int, float], list[int]]:
    """Start a process, interrupt it after some seconds, return what was told and is open."""
    process, hears = started(live_until_interrupted, path)
    hears.recv()
    time.sleep(moment)
    [said] = ended(process, hears, signal.SIGINT)
    return said


def started(
    work: Callable[[Path, Connection], None], path: Path
) -> tuple[multiprocessing.Process, Connection]:
    """Start a process; return it and the receiving end of its pipe."""
    hears, says = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(path, says), daemon=True
    )
    process.start()
    says.close()
    return process, hears


def ended(process: multiprocessing.Process, hears: Connection, how: signal.Signals) -> list:
    """End a process by a signal; return all its reports."""
    os.kill(process.pid, how)
    said = []
    # It may have more reports than the buffer of a pipe holds.
    with suppress(EOFError):
        while True:
            said.append(hears.recv())
    process.join()
    return said


def interrupts(number: int, draw: random.Random) -> dict[str, int]:
    """Interrupt a run several times; count what was lost."""
    lost = damaged = 0
    told: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        for _ in range(number):
            said, still_open = interrupted(path, draw.uniform(0.0, 0.5))
            told |= said
            with JournalReader(path) as journal:
                damaged += journal.damage is not None
                trials = trials_of(journal).set_index("trial")
            found = trials[trials.state == "told"].outcome.to_dict()
            lost += sum(found.get(n) != Y for n, Y in told.items())
            lost += len(set(found) - set(told))
            # A trial that is neither told nor open was lost.
            lost += len(set(trials.index) - set(found) - set(still_open))
        # Snapshots are deleted so that the run is replayed.
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM snapshot")
        connection.close()
        replayed = Optimizer.open(path, like=optimizer(), read_only=True, progress=False)
    return {
        "interrupts": number,
        "interrupted_trials": replayed.num_trials,
        "interrupted_tells": len(told),
        "interrupted_trials_lost": lost,
        "interrupted_journals_damaged": damaged,
    }


def main() -> None:
    """Kill, compare, print a table, save JSON."""
    chosen = parser(__doc__, kills=100, interrupts=20).parse_args()
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
    } | interrupts(chosen.interrupts, draw)
    rows = [{"measure": name, "value": value} for name, value in figures.items()]
    columns = {"measure": "{measure}", "value": "{value:.4g}"}
    different += figures["interrupted_trials_lost"] + figures["interrupted_journals_damaged"]
    show("A run killed at random moments", columns, rows, chosen.json, figures)
    if lost or damaged or different:
        sys.exit(1)


if __name__ == "__main__":
    main()
