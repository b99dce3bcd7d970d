"""A loop on a box that goes on: CPU seconds a round, memory and regret of the default by its age.

`tv_gp_ucb` with nothing given on Hartmann-3, whose last input runs through its range once in all
rounds. Of the outcomes 5 % are NaN, which `fail` closes, and 5 % are never told. The seed draws the
first actions, the noise and what is lost.

    PYTHONPATH=. python benchmarks/long_box.py --rounds 1000 --json docs/results/long_box.json
    PYTHONPATH=. python benchmarks/long_box.py --rounds 20000
"""

from __future__ import annotations

import resource
import statistics
import time

import torch
from rich.progress import track
from shared import parser, show
from torch import Generator

from experiments.problems.dynamic_problems import dynamic_problems
from tvbo import recipes

LOST, FAILED = 0.05, 0.1
PATIENCE = 20.0
"""Rounds after which a trial is given up."""
SPACING = 5
"""Every how many rounds the regret is computed, since the optimum is searched for."""


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, rounds=1000, seed=0).parse_args()
    torch.set_num_threads(1)
    generator = Generator().manual_seed(chosen.seed)
    problem = dynamic_problems(chosen.rounds, noise_variance=0.05, generator=generator)[
        "Hartmann-3"
    ]
    optimizer = recipes.tv_gp_ucb(bounds=problem.bounds, generator=generator)
    fates = torch.rand(chosen.rounds, generator=generator)
    seconds, memory, regret = [], [], []
    for t in track(range(1, chosen.rounds + 1), description="rounds"):
        started = time.process_time()
        optimizer.expire_overdue(float(t), max_delay=PATIENCE)
        trial = optimizer.ask(t=float(t))
        row = problem.layout.rows(trial.X, float(t))
        outcome = problem(row).item()
        if fates[t - 1] >= FAILED:
            optimizer.tell(trial, outcome)
        elif fates[t - 1] >= LOST:
            optimizer.fail(trial, "NaN")
        seconds.append(time.process_time() - started)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if t % SPACING == 0:
            lost = problem.optimal_value(float(t)) - problem.evaluate_true(row).item()
            regret.append((t, lost))
    results = []
    for first in sorted({100, *range(chosen.rounds // 10, chosen.rounds, chosen.rounds // 10)}):
        last = min(first + 100, chosen.rounds)
        near = [value for t, value in regret if first < t <= first + chosen.rounds // 10]
        results.append(
            {
                "rounds": [first, last],
                "seconds": statistics.median(seconds[first:last]),
                "memory_mib": memory[last - 1],
                "regret": statistics.mean(near),
            }
        )
    columns = {
        "rounds": "{rounds[0]} to {rounds[1]}",
        "CPU s a round": "{seconds:.3f}",
        "peak memory MiB": "{memory_mib:.0f}",
        "regret in this tenth": "{regret:.2f}",
    }
    title = f"{chosen.rounds} rounds, {optimizer.model_size} observations held at the end"
    show(title, columns, results, chosen.json)


if __name__ == "__main__":
    main()
