"""The same drifting problem in Optuna, Ax, a loop on BoTorch, scikit-optimize and tvbo.

Runs the python blocks of docs/from_*.md as they stand there, with other seeds, and some with a
change that is named below. A block leaves the regret of its 40 rounds in ``costs``; reported is the
mean of the last 20. With ``--still``, the optimum stays where it is at the first round.

    pip install 'botorch-tvbo[migration]'
    OMP_NUM_THREADS=1 python benchmarks/migration.py --seeds 5 --json docs/results/migration.json
"""

from __future__ import annotations

import io
import random
import re
import time
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from report import parser, show, with_error
from rich.progress import track

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
ROUNDS, LAST = 40, 20
OURS = "tvbo, tv_gp_ucb"

# What the blocks of a page play, after the first one, which is the problem.
PAGES = {
    "from_optuna": ("Optuna, TPESampler", OURS),
    "from_scikit_optimize": ("scikit-optimize", OURS),
    "from_ax": ("Ax, time as a parameter", OURS),
    "from_botorch": (
        "SingleTaskGP (x, t), qLogNEI, baseline as observed",
        "TimeVaryingGP Matérn, qLogNEI, baseline at present",
        OURS,
    ),
}

# Blocks with a change: the block's number, and what stands in for what.
NEI, BASELINE = "qLogNoisyExpectedImprovement", "X_baseline=baseline(rows, t)"
VARIANTS: dict[str, dict[str, tuple[int, Mapping[str, str]]]] = {
    "from_optuna": {
        "Optuna, GPSampler": (1, {"TPESampler": "GPSampler"}),
        "tvbo, gp_ucb: no drift": (2, {"recipes.tv_gp_ucb": "recipes.gp_ucb"}),
    },
    "from_scikit_optimize": {},
    "from_ax": {},
    "from_botorch": {
        "SingleTaskGP (x, t), qLogNEI, baseline at present": (
            2,
            {"costs = play(drifting": "costs = play(static"},
        ),
        "TimeVaryingGP exponential, qLogNEI, baseline at present": (
            2,
            {"temporal_kernel=TemporalMaternKernel(),": ""},
        ),
        # The last one: it defines the loop anew.
        "SingleTaskGP (x, t), UCB β = 1": (
            1,
            {f"import {NEI}": "import UpperConfidenceBound"}
            | {f"{NEI}(model, {BASELINE})": "UpperConfidenceBound(model, beta=1.0)"},
        ),
    },
}


def replaced(code: str, changes: Mapping[str, str]) -> str:
    """Return code with texts replaced, each of which must be there."""
    for old, new in changes.items():
        if old not in code:
            raise ValueError(f"Expected {old!r} in the block. Got\n{code}")
        code = code.replace(old, new)
    return code


def draw(namespace: Mapping[str, Any], seed: int) -> list[float]:
    """Return the regret of random search on the problem of a page."""
    generator, costs = random.Random(seed), []
    for t in range(1, ROUNDS + 1):
        rate, workers = 10 ** generator.uniform(-4, -1), generator.randint(1, 16)
        rule = generator.choice(namespace["RULES"])
        costs.append(namespace["regret"]({"rate": rate, "workers": workers, "rule": rule}, t))
    return costs


class Seed:
    """Regrets and CPU seconds of one seed, by method.

    Args:
        seed: Seed of the problem and of the methods.
        still: Whether the optimum stays where it is.
    """

    def __init__(self, seed: int, still: bool):
        self.seed = seed
        self.problem = {"SEED = 0": f"SEED = {seed}"} | ({"t / 12": "0.0"} if still else {})
        self.regret: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.code: dict[str, str] = {}

    def play(self, page: str) -> None:
        """Play what stands on a page and has not been played yet."""
        first, *blocks = BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
        namespace: dict[str, Any] = {}
        exec(replaced(first, self.problem), namespace)
        for name, code in zip(PAGES[page], blocks, strict=True):
            if self.code.setdefault(name, code) != code:
                raise ValueError(f"Expected the same code on all pages for {name}. Got\n{code}")
            self._run(name, code, namespace)
        for name, (number, changes) in VARIANTS[page].items():
            self._run(name, replaced(blocks[number - 1], changes), namespace)
        self._add("random", draw(namespace, self.seed), 0.0)

    def _run(self, name: str, code: str, namespace: dict[str, Any]) -> None:
        if name not in self.regret:
            began = time.process_time()
            with redirect_stdout(io.StringIO()):
                exec(code, namespace)
            self._add(name, namespace["costs"], time.process_time() - began)

    def _add(self, name: str, costs: list[float], seconds: float) -> None:
        self.regret[name] = sum(costs[-LAST:]) / LAST
        self.seconds[name] = seconds


def main() -> None:
    """Print the mean regret of each method, and its paired differences to ours."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--pages", nargs="+", choices=PAGES, default=list(PAGES))
    options.add_argument("--still", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    played = [Seed(seed, given.still) for seed in seeds]
    for seed in track(played):
        for page in given.pages:
            seed.play(page)
    ours = torch.tensor([seed.regret[OURS] for seed in played])
    figures, rows = [], []
    for name in sorted(played[0].regret, key=lambda name: name != OURS):
        regret = torch.tensor([seed.regret[name] for seed in played])
        seconds = torch.tensor([seed.seconds[name] for seed in played])
        figures.append(
            {
                "method": name,
                "seeds": list(seeds),
                "regret": regret.tolist(),
                "cpu_seconds": seconds.tolist(),
            }
        )
        rows.append((name, with_error(regret), with_error(regret - ours), f"{seconds.mean():.1f}"))
    columns = ("method", "mean regret", "more than the first, paired", "CPU s")
    title = f"rounds {ROUNDS - LAST + 1} to {ROUNDS}, {len(seeds)} seeds"
    show(title, columns, rows, figures, given.json)


if __name__ == "__main__":
    main()
