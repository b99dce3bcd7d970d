r"""Outcomes that are measured later than asked for: told with their time, and without.

Five problems on the unit square whose optimum moves, or jumps. An outcome is measured up to ten
rounds after its ask and told in the next round. Told without its time, it enters as of the ask;
``duration=`` says how long measuring takes on average, so that actions are chosen for that time.
The regret is that of the action at the time of its measurement, of the asks after the twentieth.
The seed draws the problem, its noise, the delays and the loop, the same for each way.

    PYTHONPATH=. python benchmarks/measured_times.py --seeds 10 --workers 2 \
        --json docs/results/measured_times.json
"""

from __future__ import annotations

import statistics

import torch
from shared import COMPARED, compared, in_workers, parser, show
from torch import Generator

from experiments.problems.dynamic_problems import dynamic_problems
from experiments.problems.fresh_problems import fresh_problems
from tvbo import recipes

HORIZON, ROUNDS, START = 80, 70, 20
LONGEST = 10.0
PROBLEMS = ["moving peaks", "rotating", "sudden jump", "seasonal", "random peaks, 2"]
WAYS = ["told with its time", "told without", "with its time and duration="]


def play(job: tuple[str, str, int]) -> float:
    """Return the mean regret of the late rounds."""
    way, name, seed = job
    generator = Generator().manual_seed(seed)
    draw = fresh_problems if name == "random peaks, 2" else dynamic_problems
    problem = draw(HORIZON, noise_variance=0.05, generator=generator)[name]
    delays = (LONGEST * torch.rand(ROUNDS, generator=generator, dtype=torch.float64)).tolist()
    duration = LONGEST / 2 if way == WAYS[2] else 0.0
    optimizer = recipes.tv_gp_ucb(bounds=problem.bounds, generator=seed, duration=duration)
    regret, pending = [], []
    for t, delay in enumerate(delays, start=1):
        for measured, trial in [each for each in pending if each[0] <= t]:
            outcome = problem(problem.layout.rows(trial.X, measured)).item()
            optimizer.tell(trial, outcome, t=None if way == WAYS[1] else measured)
        pending = [each for each in pending if each[0] > t]
        trial = optimizer.ask(t=float(t))
        pending.append((t + delay, trial))
        if t > START:
            value = problem.evaluate_true(problem.layout.rows(trial.X, t + delay)).item()
            regret.append(problem.optimal_value(t + delay) - value)
    return statistics.mean(regret)


def main() -> None:
    """Run the benchmark, print a table of each problem, save JSON."""
    chosen = parser(__doc__, seeds=10, first_seed=0, workers=1).parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    jobs = [(way, name, seed) for name in PROBLEMS for way in WAYS for seed in seeds]
    found = iter(in_workers(play, jobs, chosen.workers))
    records = []
    for name in PROBLEMS:
        regret = {way: [next(found) for _ in seeds] for way in WAYS}
        records += [{"problem": name, **each} for each in compared(regret)]
    columns = {"problem": "{problem}", "way": "{method}", **COMPARED}
    del columns["method"]
    show(f"{len(seeds)} seeds", columns, records, chosen.json)


if __name__ == "__main__":
    main()
