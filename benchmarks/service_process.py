"""A service tuned from the shell while its world goes on, and commands are killed.

This process is the world: ``SimulatedService``, its contexts, its late outcomes, and those that are
lost. The tuner is the command line: ``tvbo new``, then one process for each ``ask``, ``tell`` and
``fail``, with the journal between them and nothing else; SPACE.toml has both contexts and the
constraint. Each ask has a key of its own. An ask and a tell are killed (SIGKILL) at a random
moment of their first three seconds, and given again. At the end the journal has each hour once,
with the outcome that the world measured, and ``tvbo status`` counts what the world counted.

    python benchmarks/service_process.py
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from service_stress import Shell
from torch import Generator

from experiments.problems.simulated_service import SimulatedService
from tvbo.storage import JournalReader, trials_of

SPACE = f"""
objectives = ["revenue"]
seed = 1
initial = 16

[parameters]
batch = {{ type = "integer", bounds = [1, 12] }}
cache = {{ type = "integer", bounds = [0, 10] }}
rule = {{ type = "category", values = ["fifo", "fair", "short"] }}

[contexts]
load = {{ type = "float", bounds = [0, 5] }}
temperature = {{ type = "float", bounds = [10, 35] }}

[constraints]
latency = {{ upper = {SimulatedService.limit} }}
"""
PATIENCE = 15.0
"""Hours after which the world knows that an outcome was lost."""

KILLED = {"ask": 9, "tell": 3}
"""Which of the asks and which of the tells is killed."""


class World(Shell):
    """Plays a service, hour by hour, against a tuner that it reaches through commands.

    Args:
        run: The journal.
        hours: Number of rounds.

    Attributes:
        ended: By number of the trial, the outcomes that were told, or None of one that failed.
        by_hour: Number of the trial of each hour.
        seconds: By command, how long each took.
    """

    def __init__(self, run: Path, hours: int):
        super().__init__("world", run, hours, 0, 1)
        self.service = SimulatedService(hours, generator=Generator().manual_seed(1))
        self.ended: dict[int, dict[str, float] | None] = {}
        self.by_hour: dict[int, int] = {}
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Play all hours."""
        arriving: dict[float, list[tuple[int, dict[str, float] | None]]] = defaultdict(list)
        for hour in range(1, self.count + 1):
            for trial, outcome in arriving.pop(hour, []):
                self.end(trial, outcome)
            load, temperature = self.service.context(hour).tolist()
            # A key and a time: the clock of the world is not that of this machine.
            asked = ["--key", f"hour {hour}", "--t", str(hour), "--json"]
            contexts = ["--context", f"load={load!r}", "--context", f"temperature={temperature!r}"]
            found = json.loads(self.give("ask", *asked, *contexts))
            trial = self.by_hour[hour] = found["trial"]
            delay = self.service.delay(hour)
            outcome = self.service.measure(found["parameters"], hour)
            if math.isinf(delay):
                arriving[hour + PATIENCE].append((trial, None))
            else:
                arriving[hour + delay].append((trial, outcome))
            print(f"hour {hour} of {self.count}", end="\r", flush=True)

    def end(self, trial: int, outcome: dict[str, float] | None) -> None:
        """Tell the outcome of a trial, or that it was lost."""
        if outcome is None:
            self.give("fail", str(trial), "lost on the way")
        else:
            self.give("tell", str(trial), *(f"{name}={y!r}" for name, y in outcome.items()))
        self.ended[trial] = outcome

    def give(self, what: str, *arguments: str) -> str:
        """Give a command, and again until it has ended; return what it printed."""
        # One that ended before its kill leaves the kill to the next.
        is_due = len(self.seconds[what]) + 1 == KILLED.get(what) or bool(self.kills)
        self.kills = {1} if is_due and what in KILLED else self.kills
        began = time.perf_counter()
        out = self.command(1, what, *arguments)
        self.seconds[what].append(time.perf_counter() - began)
        return out


def check(world: World, run: Path) -> list[str]:
    """Return what differs between the world's books and the journal; nothing if all is well."""
    with JournalReader(run) as journal:
        rows = trials_of(journal).to_dict("records")
    wrong = []
    if [row["trial"] for row in rows] != list(world.by_hour.values()):
        wrong.append("trials that nobody asked for, or an hour twice")
    for row, hour in zip(rows, world.by_hour, strict=False):
        outcome = world.ended.get(row["trial"])
        state = "failed" if row["trial"] in world.ended else "open"
        state = state if outcome is None else "told"
        told = outcome is None or all(row[name] == y for name, y in outcome.items())
        if (row["t"], row["state"]) != (float(hour), state) or not told:
            wrong.append(f"trial {row['trial']}: {row}")
    return wrong


def play(hours: int, folder: Path) -> tuple[World, dict[str, int], list[str]]:
    """Play in a folder; return the world, what ``tvbo status`` counts, and what is wrong."""
    space, run = folder / "SPACE.toml", folder / "run.db"
    space.write_text(SPACE)
    begun = [sys.executable, "-m", "tvbo", "new", str(space), str(run)]
    subprocess.run(begun, check=True, stdout=subprocess.DEVNULL)
    world = World(run, hours)
    world.run()
    status = json.loads(world.give("status", "--json"))
    counts = {name: status[name] for name in ("told", "open", "failed", "expired")}
    told = sum(outcome is not None for outcome in world.ended.values())
    failed = len(world.ended) - told
    expected = {"told": told, "open": hours - told - failed, "failed": failed, "expired": 0}
    wrong = check(world, run)
    if counts != expected:
        wrong.append(f"status says {counts}, the world {expected}")
    return world, counts, wrong


def main() -> None:
    """Print what the world did, and what the journal has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world, counts, wrong = play(options.hours, Path(folder))
    for what, seconds in world.seconds.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{what}: {len(seconds)} times, median {middle:.1f} s, longest {max(seconds):.1f} s")
    print(f"killed: {world.num_killed}; the journal: {counts}")
    print(f"lost, twice or changed: {len(wrong)}", *wrong, sep="\n")
    sys.exit(1 if wrong or world.num_killed != len(KILLED) else 0)


if __name__ == "__main__":
    main()
