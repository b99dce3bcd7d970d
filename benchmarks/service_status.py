"""``tvbo status`` on a run of 10,000 events, beyond the import of BoTorch.

python benchmarks/service_status.py --json docs/results/service_status.json
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from report import parser, show

from tvbo.cli.service import SPACE as SPACE_NOTE
from tvbo.cli.space_file import optimizer_of
from tvbo.journal import JournalReader, start_journal

SPACE = """
[parameters]
x = { type = "float", bounds = [0.0, 1.0] }
y = { type = "float", bounds = [0.0, 1.0] }
"""


def seconds(*arguments: str) -> float:
    """Return the wall-clock seconds of a Python process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


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
    botorch, status = torch.tensor(pairs).median(dim=0).values.tolist()
    beyond = torch.tensor([two - one for one, two in pairs]).median().item()
    figures = {"events": num_events, "botorch": botorch, "status": status, "beyond": beyond}
    rows = [(str(num_events), f"{botorch:.2f}", f"{status:.2f}", f"{beyond:.2f}")]
    columns = ("events", "import botorch, s", "tvbo status, s", "beyond, s")
    show("tvbo status", columns, rows, figures, chosen.json)


if __name__ == "__main__":
    main()
