"""Improvement on an incumbent of the past, and of the present, on a peak whose level falls.

A Gaussian peak of height 1 moves over [0, 1] while the level of the whole function falls by 1/30 a
round; noise 0.03. The default of `tv_gp_ucb` with other acquisitions, all hyperparameters learned.

    python benchmarks/stale_incumbent.py --seeds 10 --json docs/results/stale_incumbent.json
"""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from report import parser, show
from rich.progress import track
from torch import Generator

from tvbo import recipes
from tvbo.acquisition import BestObserved, LogEI

HORIZON, FIRST, NOISE = 40, 16, 0.03

ACQUISITIONS: dict[str, Any] = {
    "LogEI, best outcome observed": LogEI(BestObserved()),
    "BoTorch's LogExpectedImprovement": LogExpectedImprovement,
    "BoTorch's qLogNoisyExpectedImprovement": qLogNoisyExpectedImprovement,
    "UCB, the default": None,
}


def play(acquisition: Any, seed: int) -> float:
    """Return the mean regret of rounds 16 to 40."""
    generator = Generator().manual_seed(1000 + seed)
    optimizer = recipes.tv_gp_ucb(
        bounds=[(0.0, 1.0)], acquisition=acquisition, generator=Generator().manual_seed(seed)
    )
    regret = []
    for t in range(1, HORIZON + 1):
        trial = optimizer.ask(float(t))
        peak = 0.5 + 0.3 * math.cos(t / 10 + seed)
        value = math.exp(-((trial.X.item() - peak) ** 2) / 0.1)
        noise = torch.randn((), dtype=torch.float64, generator=generator).item()
        optimizer.tell(trial, value - t / 30 + NOISE * noise)
        regret.append(1 - value)
    return sum(regret[FIRST - 1 :]) / (HORIZON - FIRST + 1)


def main() -> None:
    """Print mean regrets, and the differences to the first, paired."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=10)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    figures, rows = [], []
    for name, acquisition in track(ACQUISITIONS.items()):
        regret = torch.tensor([play(acquisition, seed) for seed in range(chosen.seeds)])
        figures.append({"acquisition": name, "regret": regret.tolist()})
        less = torch.tensor(figures[0]["regret"]) - regret
        root = math.sqrt(chosen.seeds)
        rows.append(
            (
                name,
                f"{regret.mean():.2f} ± {regret.std() / root:.2f}",
                f"{less.mean():.2f} ± {less.std() / root:.2f}",
            )
        )
    columns = ("acquisition", "mean regret", "less than the first, paired")
    show(f"rounds {FIRST} to {HORIZON}, {chosen.seeds} seeds", columns, rows, figures, chosen.json)


if __name__ == "__main__":
    main()
