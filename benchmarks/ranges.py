"""Regret in any range of actions and contexts: nothing of a loop may depend on the unit.

A peak of height 1 and width 0.25 goes around a circle in the unit cube in 600 rounds; with contexts
it is ahead by an eighth of a turn at the upper end of the only context, which is uniform. Actions
and contexts are multiplied by the range; "mixed" has 1e-9, 1e9 and 1 in the coordinates of actions
and 1e6 in that of contexts. Kernels that are given have lengthscales in the same unit. Noise has
standard deviation 0.02. The seed draws contexts, noise and the loop, the same in each range.

    python benchmarks/ranges.py --seeds 10 --json docs/results/ranges.json
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from shared import compared, in_workers, parser, show
from torch import Generator

from tvbo import recipes
from tvbo.optimizers import GPOptimizer

HORIZON, LATE, PERIOD, NOISE, RATE = 40, 15, 600, 0.02, 0.002
BETA = 0.25
METHODS = ["default", "kernel given", "contexts, kernel given"]
RANGES = {f"{size:g}": [size] * 4 for size in (1.0, 1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9)}
RANGES["mixed"] = [1e-9, 1e9, 1.0, 1e6]


def kernel(lengthscale: float, sizes: list[float]) -> RBFKernel:
    """Return a squared exponential kernel with its lengthscale in ranges."""
    made = RBFKernel(ard_num_dims=len(sizes)).double()
    made.lengthscale = lengthscale * torch.tensor(sizes, dtype=torch.float64)
    return made


def make(name: str, sizes: list[float], generator: Generator) -> GPOptimizer:
    """Return an optimizer of actions and a context in ranges."""
    bounds = [(0.0, size) for size in sizes[:3]]
    if name == "default":
        return recipes.tv_gp_ucb(bounds=bounds, generator=generator)
    known: dict[str, Any] = {"forgetting_rate": RATE, "noise_variance": NOISE**2, "beta": BETA}
    known |= {"bounds": bounds, "generator": generator}
    actions = kernel(0.4, sizes[:3])
    if name == "kernel given":
        return recipes.tv_gp_ucb(covar_module=actions, **known)
    return recipes.tv_cgp_ucb(
        action_kernel=actions,
        context_kernel=kernel(0.5, sizes[3:]),
        context_bounds=[(0.0, sizes[3])],
        **known,
    )


def play(job: tuple[str, str, int]) -> float:
    """Return the mean regret of the late rounds."""
    name, range_name, seed = job
    sizes = RANGES[range_name]
    generator = Generator().manual_seed(seed)
    optimizer = make(name, sizes, Generator().manual_seed(seed))
    regret = []
    for t in range(1, HORIZON + 1):
        share, noise = torch.rand((), generator=generator), torch.randn((), generator=generator)
        has_context = name.startswith("contexts")
        context = (share * sizes[3]).reshape(1).double() if has_context else None
        trial = optimizer.ask(float(t), context)
        angle = 2 * math.pi * t / PERIOD + (0.25 * math.pi * share.item() if has_context else 0.0)
        turn = [math.cos(angle), math.sin(angle), 0.4]
        center = 0.5 + 0.3 * torch.tensor(turn, dtype=torch.float64)
        place = trial.X[0] / torch.tensor(sizes[:3], dtype=torch.float64)
        value = math.exp(-(place - center).square().sum().item() / (2 * 0.25**2))
        optimizer.tell(trial, value + NOISE * noise.item())
        regret.append(1 - value)
    return sum(regret[-LATE:]) / LATE


def main() -> None:
    """Print the late regret in each range, and its paired differences to that in range 1."""
    options = parser(__doc__, seeds=10, workers=1)
    options.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    given = options.parse_args()
    seeds = range(given.seeds)
    jobs = [(name, size, seed) for name in given.only for size in RANGES for seed in seeds]
    found = dict(zip(jobs, in_workers(play, jobs, given.workers), strict=True))
    records = []
    for name in given.only:
        regret = {size: [found[name, size, seed] for seed in seeds] for size in RANGES}
        records += [
            {"optimizer": name, "range": record.pop("method"), **record}
            for record in compared(regret)
        ]
    columns = {
        "optimizer": "{optimizer}",
        "range": "{range}",
        "late regret": "{regret:.4f} ± {error:.4f}",
        "more than in range 1, paired": "{more:.4f} ± {more_error:.4f}",
    }
    title = f"mean regret of the last {LATE} of {HORIZON} rounds, {len(seeds)} seeds"
    show(title, columns, records, given.json)


if __name__ == "__main__":
    main()
