"""A run in service under stress: two shells at once, killed commands, a thousand trials in process.

Two shells ask and tell through the command line, each ask with a key of its own. Commands are
killed (SIGKILL) at random moments; a shell then gives the same command again, as a cron job would.
At the end every trial stands once in the journal, with the outcome that its shell told.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tvbo.cli.space_file import SPACE as SPACE_NOTE
from tvbo.cli.space_file import optimizer_of
from tvbo.optimizers import Optimizer
from tvbo.storage import JournalReader, trials_of
from tvbo.storage.create import start_journal

SPACE = """
minimize = true
initial = 400

[parameters]
rate = { type = "float", bounds = [1e-4, 1.0], log = true }
layers = { type = "integer", bounds = [1, 8] }
rule = { type = "category", values = ["adam", "sgd", "rms"] }
"""
LONGEST = 3.0
"""Seconds within which a command is killed; of one that has ended before, the next is."""


class Shell(threading.Thread):
    """Asks and tells through commands; some of them are killed, and given again.

    Args:
        name: Prefix of its keys.
        run: The journal.
        count: Number of trials.
        num_kills: Number of its commands that are killed.
        seed: Seed of which ones, and when.
    """

    def __init__(self, name: str, run: Path, count: int, num_kills: int, seed: int):
        super().__init__(name=name)
        self.run_path, self.count, self.num_killed = run, count, 0
        self.random = random.Random(seed)
        self.kills = set(self.random.sample(range(2 * count), num_kills))
        self.told: dict[int, float] = {}
        self.error: str | None = None

    def run(self) -> None:
        """Work through all trials."""
        try:
            for n in range(self.count):
                out = self.command(2 * n, "ask", "--key", f"{self.name} {n}", "--json")
                trial = json.loads(out)["trial"]
                outcome = n + 0.5
                self.command(2 * n + 1, "tell", str(trial), str(outcome))
                self.told[trial] = outcome
                print(f"{self.name}: {n + 1} of {self.count}", end="\r", flush=True)
        except Exception as error:
            self.error = repr(error)

    def command(self, number: int, what: str, *arguments: str) -> str:
        """Give a command until it has ended; return what it printed."""
        line = [sys.executable, "-m", "tvbo", what, str(self.run_path), *arguments]
        while True:
            process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            if number in self.kills:
                self.kills.remove(number)
                try:
                    process.wait(self.random.uniform(0.0, LONGEST))
                    self.kills.add(number + 1)
                except subprocess.TimeoutExpired:
                    process.kill()
            out, err = process.communicate()
            if process.returncode == 0:
                return out
            # A tell that was killed may have been written before its answer came.
            if process.returncode == 2 and "told already" in err:
                return out
            if process.returncode != -9:
                raise RuntimeError(err)
            self.num_killed += 1


def in_process(run: Path, count: int) -> dict[int, float]:
    """Ask and tell in this process."""
    told = {}
    with Optimizer.open(run, like=optimizer_of(SPACE)) as optimizer:
        for n in range(count):
            trial = optimizer.ask()
            optimizer.tell(trial, n / 7)
            told[trial.id] = n / 7
    return told


def main() -> None:
    """Print what was told and what the journal has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50, help="of each shell")
    parser.add_argument("--kills", type=int, default=10, help="of each shell")
    parser.add_argument("--in-process", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.db"
        optimizer = optimizer_of(SPACE)
        start_journal(optimizer, run, {SPACE_NOTE: SPACE})
        optimizer.close()
        began = time.perf_counter()
        shells = [Shell(f"shell {i}", run, options.trials, options.kills, i) for i in (1, 2)]
        for shell in shells:
            shell.start()
        for shell in shells:
            shell.join()
        told = {number: outcome for shell in shells for number, outcome in shell.told.items()}
        print(
            f"two shells: {len(told)} trials, {sum(shell.num_killed for shell in shells)} commands "
            f"killed, {time.perf_counter() - began:.0f} s"
        )
        told |= in_process(run, options.in_process)
        with JournalReader(run) as journal:
            trials = trials_of(journal)
        states = trials.state.value_counts().to_dict()
        found = dict(zip(trials.trial, trials.outcome, strict=True))
        print(f"journal: {len(trials)} trials, {states}")
        errors = [shell.error for shell in shells if shell.error]
        lost = [number for number, outcome in told.items() if found.get(number) != outcome]
        expected = 2 * options.trials + options.in_process
        print(f"lost or changed: {len(lost)}; twice or never asked for: {len(trials) - expected}")
        sys.exit(1 if errors or lost or len(trials) != expected else 0)


if __name__ == "__main__":
    main()
