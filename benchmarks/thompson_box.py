"""Thompson sampling on a box: a drawn function maximized, against one drawn at 1,000 points.

Two problems of :func:`tvbo.test_functions.dynamic_problems`, as the peers are compared on
(`benchmarks/peers/play.py`): 80 rounds, noise variance 0.05, 15 initial points that all methods of
a seed share. All learn all hyperparameters in each round: `gp_ts` as it is, which averages over
them, corrects the function that it draws for the edge of the box, and has β = 0.5; the same with
β = 1; that without the correction; a function drawn with the most probable hyperparameters; and
that drawn jointly at 1,000 scrambled Sobol points, new ones in each round, the best of which is
chosen. At 1,000 points the averaged posterior takes a second a round, and is left out.

    python benchmarks/thompson_box.py --seeds 10 --json docs/results/thompson_box.json
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models.model import Model
from report import parser, show
from rich.progress import track
from torch.quasirandom import SobolEngine

from tvbo import recipes
from tvbo.acquisition import Acquisition, DrawnValues, ThompsonSampling
from tvbo.models.draws import draw_function
from tvbo.optimizers import GPOptimizer
from tvbo.optimizers.builder import build
from tvbo.randomness import draw_seed
from tvbo.spaces import AskContext

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from methods import INITIAL, METHODS, Recipe
from play import Job, play

PROBLEMS = ("Hartmann-3", "drifting GP")
NUM_POINTS = 1000


def at_points(model: Model, ask_context: AskContext) -> DrawnValues:
    """Return a function drawn at Sobol points alone."""
    lower, upper = ask_context.search_space.bounds
    seed = draw_seed(ask_context.generator)
    unit = SobolEngine(len(lower), scramble=True, seed=seed).draw(NUM_POINTS, dtype=torch.float64)
    candidates = lower + (upper - lower) * unit
    rows = ask_context.rows(candidates)
    return DrawnValues(model, candidates, draw_function(model, rows, ask_context.generator))


def most_probable(acquisition: Acquisition, **options: Any) -> GPOptimizer:
    """Return Thompson sampling with decay and the most probable hyperparameters."""
    return build(GPOptimizer, forgetting_rate=None, acquisition=acquisition, **options)


LOOPS = {
    "one function": partial(recipes.gp_ts, forgetting_rate=None),
    "β = 1": partial(recipes.gp_ts, forgetting_rate=None, beta=1.0),
    "β = 1, not corrected": partial(
        recipes.gp_ts, forgetting_rate=None, acquisition=ThompsonSampling()
    ),
    "most probable": partial(most_probable, ThompsonSampling()),
    "1,000 points": partial(most_probable, at_points),
}


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--first-seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    for name, make in LOOPS.items():
        METHODS[name] = partial(Recipe, make)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    jobs = [
        Job(problem, method, seed) for problem in PROBLEMS for method in LOOPS for seed in seeds
    ]
    records = [play(job) for job in track(jobs, description="runs")]
    results = []
    for problem in PROBLEMS:
        for method in LOOPS:
            mine = [r for r in records if r["problem"] == problem and r["method"] == method]
            if errors := [r["error"] for r in mine if r["error"]]:
                raise RuntimeError(f"{method} on {problem}: {errors[0]}")
            regret = torch.tensor([r["regret"][INITIAL:] for r in mine]).mean(dim=-1)
            seconds = torch.tensor([r["seconds"][INITIAL:] for r in mine])
            results.append(
                {
                    "problem": problem,
                    "algorithm": method,
                    "seeds": list(seeds),
                    "regret": [round(each, 4) for each in regret.tolist()],
                    "mean": regret.mean().item(),
                    "standard_error": regret.std().item() / math.sqrt(len(regret)),
                    "median": regret.quantile(0.5).item(),
                    "worst": regret.max().item(),
                    "cpu_seconds_per_round": seconds.median().item(),
                }
            )
    columns = ("problem", "drawn as", "mean", "± s. e.", "median", "worst seed", "CPU s a round")
    table = [
        (
            r["problem"],
            r["algorithm"],
            *(f"{r[key]:.3f}" for key in ("mean", "standard_error", "median", "worst")),
            f"{r['cpu_seconds_per_round']:.3f}",
        )
        for r in results
    ]
    title = f"mean regret over rounds {INITIAL + 1} to 80, {chosen.seeds} seeds"
    show(title, columns, table, results, chosen.json)


if __name__ == "__main__":
    main()
