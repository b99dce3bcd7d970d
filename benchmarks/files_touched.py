"""Files of the package that one ask, or one fit of a log, runs through.

python benchmarks/files_touched.py --json files_touched.json
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

import tvbo
from tvbo import recipes
from tvbo.cli import add_other_commands
from tvbo.cli import main as command_line
from tvbo.optimizers import GPOptimizer

PACKAGE = Path(tvbo.__file__).parent
POINTS, ROUNDS, DELAY, ROWS = 50, 10, 3, 60
RATE, NOISE = 0.03, 0.01


def files_of(work: Callable[[], object]) -> list[str]:
    """Return the files of the package of which a function runs during some work."""
    found = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        # A module that is imported on the way runs, too, but is not called.
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    inside = [Path(name) for name in found if Path(name).is_relative_to(PACKAGE)]
    return sorted(str(path.relative_to(PACKAGE)) for path in inside)


def before_ask(delay: int, generator: torch.Generator) -> GPOptimizer:
    """Return TV-GP-UCB on a finite set before its tenth ask, with as many trials pending."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    optimizer = recipes.tv_gp_ucb(
        choices=torch.rand(POINTS, 2, dtype=torch.float64, generator=generator),
        covar_module=kernel,
        noise_variance=NOISE,
        forgetting_rate=RATE,
    )
    trials = []
    for t in range(1, ROUNDS):
        trials.append(optimizer.ask(t=float(t)))
        if len(trials) > delay:
            optimizer.tell(trials.pop(0), torch.randn((), generator=generator).item())
    return optimizer


def fit_log(folder: Path, generator: torch.Generator) -> Callable[[], object]:
    """Write a log that drifts, and return the command that fits it."""
    x = torch.rand(ROWS, generator=generator)
    noise = 0.1 * torch.randn(ROWS, generator=generator)
    y = torch.sin(5 * x + torch.arange(ROWS) / 10) + noise
    rows = (f"{t},{x[t]:.4f},{y[t]:.4f}\n" for t in range(ROWS))
    (folder / "log.csv").write_text("t,x,y\n" + "".join(rows))
    add_other_commands()  # Classes of modules that are imported on the way would count as called.
    words = f"fit {folder / 'log.csv'} --time t --reward y --action x"

    def fit() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                command_line(words.split())
            except SystemExit as end:
                if end.code:
                    raise

    return fit


def main() -> None:
    """List the files, print their numbers, and save them if a path is given."""
    given = parser(__doc__).parse_args()
    generator = torch.Generator().manual_seed(0)
    figures = {}
    for name, delay in (("ask", 0), (f"ask, {DELAY} trials pending", DELAY)):
        optimizer = before_ask(delay, generator)
        figures[name] = files_of(lambda optimizer=optimizer: optimizer.ask(t=float(ROUNDS)))
    with tempfile.TemporaryDirectory() as folder:
        figures["tvbo fit"] = files_of(fit_log(Path(folder), generator))
    rows = [(name, str(len(files)), "\n".join(files)) for name, files in figures.items()]
    columns = ("what", "number", "files of tvbo/")
    show("Files that run", columns, rows, figures, given.json)


if __name__ == "__main__":
    main()
