"""The default `tv_gp_ucb` on a moving peak, against optimizers without drift.

A Gaussian peak of width 0.15 goes round a circle of radius 0.3 in the unit square, once in 100
rounds; values are scaled to standard deviation 1 over actions, the noise has standard deviation
0.22. Every loop with a model learns all its hyperparameters in every round, and starts with
space-filling actions, two for each hyperparameter of ours (10; GP-UCB, which has one less, 8). All
but the default of `tv_gp_ucb` have β = 0.8 log(4 t). The seed draws the noise, the first actions
and all other random choices.

    python benchmarks/moving_peak.py --seeds 30 --json docs/results/moving_peak.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from peers.botorch_loop import PlainBoTorch
from shared import in_workers, parser, show
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.acquisition import LogBeta
from tvbo.kernels import TemporalDecayKernel
from tvbo.test_functions import MovingPeak

HORIZON = 70
FIRST = 16
"""First round of the mean regret."""
MEAN, SCALE, NOISE = 0.14, 0.24, 0.22
OURS = "TV-GP-UCB"


class ScaledPeak:
    """The moving peak, scaled to standard deviation 1 over actions."""

    def __init__(self, seed: int):
        self.peak = MovingPeak(period=100.0, width=0.15, radius=0.3)
        self.generator = torch.Generator().manual_seed(10_000 + seed)

    def value(self, X: Tensor, t: int) -> float:
        """Return the value of the action ``1 x 2`` without noise."""
        rows = self.peak.layout.rows(X, float(t))
        return (self.peak.evaluate_true(rows).item() - MEAN) / SCALE

    def regret(self, X: Tensor, t: int) -> float:
        """Return the regret of the action ``1 x 2``."""
        return (self.peak.optimal_value(t) - MEAN) / SCALE - self.value(X, t)

    def observe(self, X: Tensor, t: int) -> float:
        """Return the value with noise."""
        noise = torch.randn((), dtype=torch.float64, generator=self.generator)
        return self.value(X, t) + NOISE * noise.item()


def with_recipe(make: Callable[..., object]) -> Callable[[int], list[tuple[float, float]]]:
    """Return a function from the seed to regret and CPU seconds of each round of a recipe."""

    def play(seed: int) -> list[tuple[float, float]]:
        problem = ScaledPeak(seed)
        optimizer = make(bounds=problem.peak.bounds, generator=Generator().manual_seed(seed))
        rounds = []
        for t in range(1, HORIZON + 1):
            started = time.process_time()
            trial = optimizer.ask(t=t)
            optimizer.tell(trial, problem.observe(trial.X, t))
            rounds.append((problem.regret(trial.X, t), time.process_time() - started))
        return rounds

    return play


def with_botorch(seed: int) -> list[tuple[float, float]]:
    """Return regret and CPU seconds of each round of BoTorch's loop."""
    problem = ScaledPeak(seed)
    loop = PlainBoTorch(problem.peak.bounds, seed)
    rounds = []
    for t in range(1, HORIZON + 1):
        started = time.process_time()
        X = loop.ask(t)
        loop.tell(X, t, problem.observe(X, t))
        rounds.append((problem.regret(X, t), time.process_time() - started))
    return rounds


LOOPS = {
    OURS: with_recipe(recipes.tv_gp_ucb),
    "TV-GP-UCB, ε by maximum likelihood": with_recipe(
        partial(recipes.tv_gp_ucb, temporal_kernel=TemporalDecayKernel().double(), beta=LogBeta())
    ),
    "GP-UCB (no drift)": with_recipe(recipes.gp_ucb),
    "BoTorch, time as an input": with_botorch,
    "random": with_recipe(recipes.random_search),
}


def one(job: tuple[str, int]) -> tuple[float, float]:
    """Return mean regret and median CPU seconds over the rounds after the first ones."""
    name, seed = job
    counted = torch.tensor(LOOPS[name](seed)[FIRST - 1 :], dtype=torch.float64)
    return counted[:, 0].mean().item(), counted[:, 1].median().item()


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__, seeds=30, first_seed=0, workers=2)
    options.add_argument("--only", choices=list(LOOPS), help="one of the loops")
    chosen = options.parse_args()
    names = [chosen.only] if chosen.only else list(LOOPS)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    jobs = [(name, seed) for name in names for seed in seeds]
    measured = dict(zip(jobs, in_workers(one, jobs, chosen.workers), strict=True))
    results = []
    for name in names:
        regret, seconds = zip(*(measured[name, seed] for seed in seeds), strict=True)
        results.append(
            {
                "algorithm": name,
                "seeds": list(seeds),
                "regret": regret,
                "median": statistics.median(regret),
                "worst": max(regret),
                "over_2": sum(each > 2 for each in regret),
                "cpu_seconds_per_round": statistics.median(seconds),
            }
        )
    columns = {
        "algorithm": "{algorithm}",
        "median": "{median:.2f}",
        "worst seed": "{worst:.2f}",
        "seeds above 2": "{over_2}",
        "CPU s a round": "{cpu_seconds_per_round:.2f}",
    }
    title = f"mean regret over rounds {FIRST} to {HORIZON}, {chosen.seeds} seeds"
    show(title, columns, results, chosen.json)


if __name__ == "__main__":
    main()
