"""`tvbo.integrations.ax.drifting_strategy` in Ax's `Client`, against `tv_gp_ucb` in our own loop.

The problem is that of `moving_peak.py`; the seeds draw the same noise for each method. Ax by its
own has time as a parameter, held at the present in each round, whose range is that of the run.

    pip install 'botorch-tvbo[ax]'
    OMP_NUM_THREADS=1 python benchmarks/in_ax.py --seeds 10 --json docs/results/in_ax.json
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.generation_strategy.generation_strategy import GenerationStrategy
from moving_peak import FIRST, HORIZON, ScaledPeak, with_recipe
from rich.progress import track
from shared import COMPARED, compared, parser, show

from tvbo import recipes
from tvbo.integrations.ax import drifting_strategy


def in_ax(
    make: Callable[[int], GenerationStrategy] | None, last: float, seed: int
) -> list[tuple[float, float]]:
    """Return regret and CPU seconds of each round in Ax's client.

    Args:
        make: Makes the strategy from the seed; None is Ax's own.
        last: Upper end of the range of time.
        seed: The seed.
    """
    problem, client = ScaledPeak(seed), Client(random_seed=seed)
    ranges = {"x": (0.0, 1.0), "y": (0.0, 1.0), "t": (0.0, last)}
    client.configure_experiment(
        [RangeParameterConfig(name, bounds, "float") for name, bounds in ranges.items()]
    )
    client.configure_optimization("value")
    if make is not None:
        client.set_generation_strategy(make(seed))
    rounds = []
    for t in range(1, HORIZON + 1):
        started = time.process_time()
        ((number, parameters),) = client.get_next_trials(1, {"t": float(t)}).items()
        X = torch.tensor([[parameters["x"], parameters["y"]]], dtype=torch.float64)
        client.complete_trial(number, {"value": problem.observe(X, t)})
        rounds.append((problem.regret(X, t), time.process_time() - started))
    return rounds


LOOPS: dict[str, Callable[[int], list[tuple[float, float]]]] = {
    "tv_gp_ucb, our loop": with_recipe(recipes.tv_gp_ucb),
    "drifting_strategy in Ax": partial(in_ax, lambda seed: drifting_strategy(seed=seed), 1e6),
    "Ax's default, time as a parameter": partial(in_ax, None, float(HORIZON)),
    "random": with_recipe(recipes.random_search),
}


def main() -> None:
    """Print the mean regret of each method, and its paired differences to ours."""
    given = parser(__doc__, seeds=10, first_seed=0).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    regret, cpu = {}, {}
    for name, play in LOOPS.items():
        measured = [play(seed)[FIRST - 1 :] for seed in track(seeds, description=name)]
        each, seconds = torch.tensor(measured, dtype=torch.float64).unbind(dim=-1)
        regret[name], cpu[name] = each.mean(dim=-1).tolist(), seconds.median().item()
    columns = COMPARED | {"CPU s a round": "{cpu_seconds:.2f}"}
    title = f"rounds {FIRST} to {HORIZON}, {len(seeds)} seeds"
    show(title, columns, compared(regret, cpu_seconds=cpu), given.json)


if __name__ == "__main__":
    main()
