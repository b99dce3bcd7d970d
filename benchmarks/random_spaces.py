"""Random spaces by name: each is asked, recommends and is resumed from its record.

A space has 1 to 5 parameters and up to 2 contexts: floats in any range, logarithms, integers of few
and of many values, categories of two, of some and of many values, with an order and without, and
fixed values. Recipes take turns. Each action must be one of the space, and the run that is resumed
must recommend what the first one does and go on. Exits with 1 where a space raises.

    python benchmarks/random_spaces.py --spaces 300 --asks 20
"""

from __future__ import annotations

import math
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from ConfigSpace import Categorical, Float, Integer
from gpytorch.kernels import MaternKernel
from shared import in_workers, parser, show

from tvbo import recipes
from tvbo.acquisition import LogEI
from tvbo.optimizers import Optimizer, RefitEvery
from tvbo.spaces import Parameters

Space = dict[str, Any]


def words(count: int) -> list[str]:
    """Return the values of a category."""
    return [f"v{i}" for i in range(count)]


def log_range(random: Random) -> tuple[float, float]:
    """Return the bounds of a float on a logarithmic scale."""
    lower = 10 ** random.uniform(-9, 6)
    return lower, lower * 10 ** random.uniform(0.5, 6)


def float_range(random: Random) -> tuple[float, float]:
    """Return bounds whose width is of any size."""
    width = 10.0 ** random.randint(-9, 9)
    lower = random.choice([0.0, -0.5, -1.0, 3.0]) * width
    return lower, lower + width


KINDS: dict[str, Callable[[str, Random], Any]] = {
    "float": lambda name, random: float_range(random),
    "log float": lambda name, random: Float(name, log_range(random), log=True),
    "integer": lambda name, random: (0, random.randint(1, 19)),
    "log integer": lambda name, random: Integer(name, (1, 2 ** random.randint(1, 12)), log=True),
    "wide integer": lambda name, random: (-5, random.choice([16, 100, 10**6])),
    "flag": lambda name, random: [True, False],
    "two-valued": lambda name, random: random.choice([["on", "off"], [0.1, 3.0], [8, 64]]),
    "category": lambda name, random: words(random.randint(3, 6)),
    "wide category": lambda name, random: words(random.randint(21, 40)),
    "ordered": lambda name, random: Categorical(name, words(random.randint(2, 6)), ordered=True),
    "wide ordered": lambda name, random: Categorical(name, words(30), ordered=True),
    "fixed": lambda name, random: random.choice(["adam", 3, 0.5]),
}


def draw(random: Random, prefix: str, count: int) -> tuple[Space, list[str]]:
    """Return parameters by name, at least one of which varies, and their kinds."""
    while True:
        kinds = random.choices(list(KINDS), k=count)
        if set(kinds) != {"fixed"}:
            break
    names = [f"{prefix}{i}" for i in range(count)]
    return {name: KINDS[kind](name, random) for name, kind in zip(names, kinds, strict=True)}, kinds


def known(*spaces: Space) -> dict[str, Any]:
    """Return a kernel over the columns, with its noise."""
    columns = torch.cat([Parameters.of(space).bounds for space in spaces], dim=-1)
    kernel = MaternKernel(nu=2.5, ard_num_dims=columns.shape[-1]).double()
    kernel.lengthscale = 0.5 * (columns[1] - columns[0])
    return {"covar_module": kernel, "noise_variance": 0.01}


ALONE: dict[str, Callable[[Space], Optimizer]] = {
    "tv_gp_ucb": lambda bounds: recipes.tv_gp_ucb(bounds=bounds, initial=3),
    "tv_gp_ucb, kernel given": lambda bounds: recipes.tv_gp_ucb(
        bounds=bounds, forgetting_rate=0.03, **known(bounds)
    ),
    "gp_ts": lambda bounds: recipes.gp_ts(bounds=bounds, initial=3, refit=RefitEvery(8)),
    "gp_ts, drift learned": lambda bounds: recipes.gp_ts(
        bounds=bounds, initial=3, forgetting_rate=None
    ),
    "LogEI": lambda bounds: recipes.gp_ucb(bounds=bounds, acquisition=LogEI(), **known(bounds)),
    "qLogNEI": lambda bounds: recipes.gp_ucb(
        bounds=bounds, acquisition=qLogNoisyExpectedImprovement, **known(bounds)
    ),
    "constrained": lambda bounds: recipes.tv_gp_ucb(
        bounds=bounds, forgetting_rate=0.03, constraints={"other": (None, 0.5)}, **known(bounds)
    ),
}
IN_CONTEXTS: dict[str, Callable[[Space, Space], Optimizer]] = {
    "tv_cgp_ucb": lambda bounds, contexts: recipes.tv_cgp_ucb(
        bounds=bounds, context_bounds=contexts, initial=3, refit=RefitEvery(8)
    ),
    "cgp_ucb, kernel given": lambda bounds, contexts: recipes.cgp_ucb(
        bounds=bounds, context_bounds=contexts, **known(bounds, contexts)
    ),
}


def make(seed: int) -> tuple[Optimizer, Parameters | None, str]:
    """Return the optimizer of a seed, the parameters of its contexts, and both as text."""
    random = Random(seed)
    bounds, kinds = draw(random, "x", random.randint(1, 5))
    if seed % 3:
        name = random.choice(list(ALONE))
        return ALONE[name](bounds), None, f"{name}: {', '.join(kinds)}"
    contexts, seen = draw(random, "c", random.randint(1, 2))
    name = random.choice(list(IN_CONTEXTS))
    text = f"{name}: {', '.join(kinds)}; contexts: {', '.join(seen)}"
    return IN_CONTEXTS[name](bounds, contexts), Parameters.of(contexts), text


def play(seed: int, asks: int, folder: Path) -> None:
    """Ask, recommend and resume; raise where something is wrong.

    Args:
        seed: Seed of the space.
        asks: Number of asks before the run is resumed.
        folder: Of the run.
    """
    optimizer, contexts, _ = make(seed)
    generator = torch.Generator().manual_seed(seed)
    path = folder / f"{seed}.db"
    optimizer.record(path)

    def context_now() -> Any:
        if contexts is None:
            return None
        unit = torch.rand(1, len(contexts.varying), dtype=torch.float64, generator=generator)
        return contexts.decode(contexts.from_unit(unit))

    def step(optimizer: Optimizer) -> None:
        trial = optimizer.ask(context=context_now())
        space = optimizer.search_space
        found = space.parameters.encode(trial.parameters)
        torch.testing.assert_close(space.snap(found.unsqueeze(0)), trial.X, rtol=1e-9, atol=0)
        low, high = space.bounds
        share = ((trial.X[0] - low) / (high - low)).mean().item()
        value = math.sin(5 * share + 0.05 * trial.t) + 0.1 * torch.randn((), generator=generator)
        names = optimizer.labels.outcomes
        optimizer.tell(trial, dict(zip(names, (value, share), strict=True)) if names else value)

    for i in range(asks):
        step(optimizer)
        if i == 0:
            optimizer.recommend(context=context_now())
    context = context_now()
    before = optimizer.recommend(context=context)
    optimizer.close()
    with Optimizer.open(path, like=make(seed)[0]) as resumed:
        after = resumed.recommend(context=context)
        torch.testing.assert_close(after.X, before.X, rtol=1e-6, atol=1e-9)
        step(resumed)


def played(seed: int, asks: int) -> str:
    """Return what a space raised, or nothing."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        try:
            play(seed, asks, Path(folder))
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    return ""


def main() -> None:
    """Print how many of the spaces raised, and which."""
    given = parser(__doc__, spaces=300, first_seed=0, asks=20, workers=1).parse_args()
    seeds = range(given.first_seed, given.first_seed + given.spaces)
    errors = in_workers(partial(played, asks=given.asks), seeds, given.workers)
    failed = [
        {"seed": seed, "space": make(seed)[2], "raised": error}
        for seed, error in zip(seeds, errors, strict=True)
        if error
    ]
    columns = {"seed": "{seed}", "space": "{space}", "raised": "{raised}"}
    title = f"{len(failed)} exceptions in {given.spaces} spaces x {given.asks} asks"
    show(title, columns, failed, given.json)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
