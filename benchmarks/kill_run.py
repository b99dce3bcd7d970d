"""A run killed with ``kill -9`` at random times, and how long large runs take to open.

Each process goes on with the run and says what was acknowledged, until it is killed: while it
begins, asks, tells, fails, reads or copies the run. What was acknowledged must be in the run once,
with its values. Exits with 1 if anything was lost or is there twice.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from killed_runs import KIND, check, killed
from run_cases import made, play
from shared import parser, show
from sqlalchemy import insert, update

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.storage import read_run
from tvbo.storage.database import Database, run_table, trial_table

LONGEST = 0.3
"""Largest lifetime of a process in seconds, after its first words."""

SIZES = 10_000, 100_000
"""Trials of the runs that are opened."""


def killed_run(path: Path, kills: int) -> dict[str, int]:
    """Kill processes, check after each what is in the run; return what was acknowledged."""
    # Modules that are imported at first use are imported before the processes are forked.
    play(made(KIND), 4)
    said = []
    for number in range(kills):
        said += killed(path, random.uniform(0, LONGEST), number % 3)
        check(path, said, number + 1)
    calls = [word[0] for word in said]
    counts = {call: calls.count(call) for call in ("ask", "tell", "fail", "status", "backup")}
    return {"kills": kills, "trials": len(read_run(path).trials), **counts}


def fill(path: Path, size: int) -> None:
    """Write a run of so many trials, the newest 100 of which are in its model."""
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0), (0.0, 1.0)])
    optimizer.record(path)
    for _ in range(30):
        trial = optimizer.ask()
        optimizer.tell(trial, trial.X.square().sum().item())
    with Database(path).transaction(writes=True) as connection:
        first = connection.execute(run_table.select()).one()
        newest = connection.execute(trial_table.select().where(trial_table.c.id == 30)).one()
        rows = []
        for number in range(31, size + 1):
            changed = first.changes + 2 * (number - 30)
            x = [random.random(), random.random()]
            row = {"id": number, "round": number, "t": float(number), "asked": float(number)}
            row |= {"X": json.dumps(x), "Y": json.dumps([sum(x)])}
            row |= {"parameters": json.dumps({"action_0": x[0], "action_1": x[1]})}
            row |= {"opened": changed - 1, "ended": changed}
            row |= {"dropped": json.dumps([[number - 100]] if number > 100 else [])}
            rows.append(newest._asdict() | row)
        connection.execute(insert(trial_table), rows)
        state = json.loads(first.state)
        state["outcome_models"][0]["num_told"] = size
        changed = first.changes + 2 * (size - 30)
        connection.execute(update(run_table).values(changes=changed, state=json.dumps(state)))


def main() -> None:
    """Kill, open, print a table, save JSON."""
    chosen = parser(__doc__, kills=1000).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures: dict[str, float] = {**killed_run(Path(folder) / "run.db", chosen.kills)}
        except AssertionError as error:
            sys.exit(f"lost, or there twice: {error}")
        for size in SIZES:
            path = Path(folder) / f"{size}.db"
            fill(path, size)
            started = time.process_time()
            optimizer = Optimizer.open(path)
            figures[f"cpu_seconds_to_open_{size}"] = time.process_time() - started
            assert optimizer.num_trials == size
            figures[f"megabytes_of_{size}"] = path.stat().st_size / 2**20
    rows = [{"measure": name, "value": value} for name, value in figures.items()]
    columns = {"measure": "{measure}", "value": "{value:.4g}"}
    show("A run killed at random moments; large runs", columns, rows, chosen.json, figures)


if __name__ == "__main__":
    main()
