"""``tvbo status`` on a run of 10,000 events, beyond the import of BoTorch.

python benchmarks/service_status.py --json docs/results/service_status.json
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from report import parser, show

from tvbo.cli.space_file import SPACE as SPACE_NOTE
from tvbo.cli.space_file import optimizer_of
from tvbo.storage import JournalReader, start_journal

SPACE = """
[parameters]
x = { type = "float", bounds = [0.0, 1.0] }
y = { type = "float", bounds = [0.0, 1.0] }
"""


def seconds(*arguments: str) -> tuple[float, float]:
    """Return the wall-clock seconds and the CPU seconds of a Python process."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return time.perf_counter() - began, cpu


def main() -> None:
    """Print medians over repetitions, taken in turns."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.db"
        optimizer = optimizer_of(SPACE)
        start_journal(optimizer, run, {SPACE_NOTE: SPACE})
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(5000, 2, dtype=torch.float64, generator=generator)
        t = torch.arange(5000, dtype=torch.float64)
        Y = torch.sin(6 * X[:, 0] + t / 50) - X[:, 1]
        log = pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "t": t, "outcome": Y})
        optimizer.attach_frame(log.iloc[:4990])
        for _ in range(10):
            trial = optimizer.ask(float(optimizer.num_trials))
            optimizer.tell(trial, 0.5)
        optimizer.close()
        with JournalReader(run) as journal:
            num_events = journal.num_good
        pairs = [
            (seconds("-c", "import botorch"), seconds("-m", "tvbo", "status", str(run)))
            for _ in range(chosen.repeats)
        ]
    times = torch.tensor(pairs)  # Repetition, command, clock.
    medians = torch.cat([times, times.diff(dim=1)], dim=1).median(dim=0).values.T.tolist()
    names = ("botorch", "status", "beyond")
    clocks = list(zip(("wall clock", "CPU"), medians, strict=True))
    figures: dict[str, object] = {"events": num_events}
    figures |= {clock: dict(zip(names, each, strict=True)) for clock, each in clocks}
    rows = [(clock, *(f"{each:.2f}" for each in values)) for clock, values in clocks]
    columns = ("seconds", "import botorch", "tvbo status", "beyond")
    show(f"tvbo status, {num_events} events", columns, rows, figures, chosen.json)


if __name__ == "__main__":
    main()
