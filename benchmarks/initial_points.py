"""How many space-filling actions pay: `tv_gp_ucb` with nothing given but `initial`.

The fifteen problems of `dynamic_problems`, 80 rounds, noise variance 0.05. The
regret counts from the first round on, since first actions cost what they cost. The default is two
actions for each number that is learned: 2 (d + 3) on a box of d parameters.

    OMP_NUM_THREADS=1 python benchmarks/initial_points.py --seeds 5 \
        --json docs/results/initial_points.json
"""

from __future__ import annotations

import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from report import parser, show
from rich.progress import track
from torch import Generator

from tvbo import recipes

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from play import HORIZON, Game, make_problems

SHARES = (0.25, 0.5, 1.0, 2.0, 3.0)
"""Numbers of first actions, as shares of the default."""


def play(job: tuple[str, float, int]) -> float:
    """Return the mean regret over all rounds of a problem, with a share of first actions."""
    problem, share, seed = job
    game = Game(problem, seed)
    bounds = game.problem.bounds
    initial = round(share * recipes.tv_gp_ucb(bounds=bounds).initial)
    optimizer = recipes.tv_gp_ucb(
        bounds=bounds, initial=initial, generator=Generator().manual_seed(seed)
    )
    regret = []
    for t in range(1, HORIZON + 1):
        trial = optimizer.ask(t)
        regret.append(game.regret(trial.X, float(t)))
        optimizer.tell(trial, game.observe(trial.X, float(t)))
    return sum(regret) / HORIZON


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--first-seed", type=int, default=200)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    names = list(make_problems(0))
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    jobs = [(name, share, seed) for name in names for share in SHARES for seed in seeds]
    with ProcessPoolExecutor(
        chosen.workers, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        played = list(track(pool.map(play, jobs), total=len(jobs), description="runs"))
    shape = len(names), len(SHARES), len(seeds)
    regret = torch.tensor(played, dtype=torch.float64).view(shape)
    # Of each problem and seed, against the default: paired.
    ratios = (regret / regret[:, [SHARES.index(1.0)]]).log()
    rows, results = [], []
    for i, share in enumerate(SHARES):
        logs = ratios[:, i].flatten()
        error = logs.std().item() / math.sqrt(len(logs))
        lower = int((logs < 0).sum())
        results.append(
            {
                "share": share,
                "ratio": math.exp(logs.mean().item()),
                "standard_error_of_logarithm": error,
                "lower": lower,
                "runs": len(logs),
                "mean_regret": dict(zip(names, regret[:, i].mean(dim=-1).tolist(), strict=True)),
            }
        )
        rows.append(
            (f"{share:g}", f"{math.exp(logs.mean().item()):.3f}", f"{error:.3f}", f"{lower}")
        )
    columns = ("share of the default", "regret, ratio", "± (of its logarithm)", "runs below")
    title = f"geometric means over {len(names)} problems and {chosen.seeds} seeds"
    show(title, columns, rows, results, chosen.json)


if __name__ == "__main__":
    main()
