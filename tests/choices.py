"""What every recipe chooses, to be compared between machines, threads and roundings.

    python tests/choices.py --rounds 200

prints a JSON object of lists of numbers. ``TVBO_TEST_ROUNDING`` and ``TVBO_TEST_THREADS`` count.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from tvbo import recipes
from tvbo.acquisition import LogEI, MaxMean
from tvbo.retention import SizeLimit
from tvbo.test_functions import unit_grid

GRID = 2 * unit_grid(7) - 1
CONTEXTS = torch.tensor([[-0.5], [0.0], [0.5]], dtype=torch.float64)
BOX = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
NOISE_VARIANCE = 0.01


def rbf(dim=None, lengthscale=0.4):
    kernel = RBFKernel(active_dims=dim).double()
    kernel.lengthscale = lengthscale
    return kernel


def matern():
    kernel = MaternKernel(nu=1.5).double()
    kernel.lengthscale = 0.4
    return kernel


def reward(X, t, context=None):
    """As symmetric as the grid, so that many actions are tied; it moves a little with time."""
    shift = 0.0 if context is None else context.item()
    return (-(X.square().sum() + shift * X.prod()) + 0.1 * torch.cos(torch.tensor(0.1 * t))).item()


def given(space, covar_module=None):
    """Every recipe with its hyperparameters, on a finite set or a box, by name."""
    kernel = rbf() if covar_module is None else covar_module
    known = {**space, "noise_variance": NOISE_VARIANCE, "covar_module": kernel}
    drifting = {**known, "forgetting_rate": 0.03}
    joint = {
        **space,
        "noise_variance": NOISE_VARIANCE,
        "contexts": CONTEXTS,
        "action_kernel": rbf(),
        "context_kernel": rbf(lengthscale=0.8),
    }
    return {
        "tv_gp_ucb": lambda: recipes.tv_gp_ucb(**drifting),
        "gp_ucb": lambda: recipes.gp_ucb(**known),
        "r_gp_ucb": lambda: recipes.r_gp_ucb(every=15, **known),
        "size_limit": lambda: recipes.tv_gp_ucb(retention=SizeLimit(20), **drifting),
        "tv_cgp_ucb": lambda: recipes.tv_cgp_ucb(forgetting_rate=0.03, **joint),
        "cgp_ucb": lambda: recipes.cgp_ucb(**joint),
        "merged": lambda: recipes.merged(contexts=CONTEXTS, **drifting),
        "separate": lambda: recipes.separate(contexts=CONTEXTS, **drifting),
        "compressed_gp": lambda: recipes.compressed_gp(budget=0.02, **drifting),
        "compressed_gp, LogEI": lambda: recipes.compressed_gp(
            budget=0.02, acquisition=LogEI(MaxMean()), **drifting
        ),
        "bkb": lambda: recipes.bkb(**known),
        "gp_bucb": lambda: recipes.gp_bucb(**drifting),
        "gp_ucb_sdf": lambda: recipes.gp_ucb_sdf(minimum=-2.0, **known),
        "gp_ts": lambda: recipes.gp_ts(**drifting),
        "gp_ts_sdf": lambda: recipes.gp_ts_sdf(minimum=-2.0, **known),
        "bpe": lambda: recipes.bpe(horizon=1000, **known),
        "bpe_delay": lambda: recipes.bpe_delay(horizon=1000, **known),
    }


def given_on_a_grid():
    grid = {"choices": GRID}
    return given(grid) | {
        "tv_gp_ucb, Matern": given(grid, matern())["tv_gp_ucb"],
        "gp_ts, Matern": given(grid, matern())["gp_ts"],
        "linear_ucb": lambda: recipes.linear_ucb(choices=GRID, contexts=CONTEXTS),
        "rexp3": lambda: recipes.rexp3(choices=GRID, block=50, reward_bounds=(-4.0, 1.0)),
        "sw_ucb": lambda: recipes.sw_ucb(choices=GRID, window=60, reward_bounds=(-4.0, 1.0)),
        "d_ucb": lambda: recipes.d_ucb(choices=GRID, discount=0.98, reward_bounds=(-4.0, 1.0)),
        "last_best": lambda: recipes.last_best(choices=GRID),
        "random_search": lambda: recipes.random_search(choices=GRID),
    }


def learned(space):
    """Every recipe that learns hyperparameters, on a finite set or a box, by name."""
    return {
        "tv_gp_ucb": lambda: recipes.tv_gp_ucb(**space),
        "gp_ucb": lambda: recipes.gp_ucb(**space),
        "r_gp_ucb": lambda: recipes.r_gp_ucb(every=100, **space),
        "tv_cgp_ucb": lambda: recipes.tv_cgp_ucb(contexts=CONTEXTS, **space),
        "cgp_ucb": lambda: recipes.cgp_ucb(contexts=CONTEXTS, **space),
        "merged": lambda: recipes.merged(contexts=CONTEXTS, **space),
        "compressed_gp": lambda: recipes.compressed_gp(**space),
        "bkb": lambda: recipes.bkb(**space),
        "gp_bucb": lambda: recipes.gp_bucb(**space),
        "gp_ucb_sdf": lambda: recipes.gp_ucb_sdf(minimum=-2.0, **space),
        "gp_ts": lambda: recipes.gp_ts(**space),
    }


def play(optimizer, rounds, late=3):
    """Actions of a run whose outcomes come three rounds late, by their places in the grid."""
    places, waiting = [], []
    contexts = CONTEXTS if optimizer.contexts is not None else [None]
    for t in range(1, rounds + 1):
        context = contexts[t % len(contexts)]
        trial = optimizer.ask(t=float(t), context=context)
        places.append(int((GRID - trial.X).square().sum(dim=-1).argmin()))
        if not trial.skipped:
            waiting.append(trial)
        if waiting and waiting[0].t <= t - late:
            told = waiting.pop(0)
            optimizer.tell(told, reward(told.X[0], told.t, told.context))
    return places


def ask_once(optimizer, on_grid, observations=25):
    """The action that recorded data lead to: its place in the grid, or its coordinates."""
    generator = torch.Generator().manual_seed(3)
    contexts = CONTEXTS if optimizer.contexts is not None else [None]
    for t in range(1, observations + 1):
        X = GRID[torch.randint(len(GRID), (1,), generator=generator)]
        context = contexts[t % len(contexts)]
        noise = NOISE_VARIANCE**0.5 * torch.randn(1, dtype=torch.float64, generator=generator)
        trial = optimizer.attach(X, float(t), context)
        optimizer.tell(trial, reward(X[0], float(t), context) + noise.item())
    X = optimizer.ask(t=observations + 1.0, context=contexts[0]).X
    return [int((GRID - X).square().sum(dim=-1).argmin())] if on_grid else X[0].tolist()


def all_choices(rounds):
    """By kind of run and recipe, numbers that no rounding may change."""
    grid, box = {"choices": GRID}, {"bounds": BOX}
    return {
        "given, grid": {name: play(make(), rounds) for name, make in given_on_a_grid().items()},
        "given, box": {name: ask_once(make(), False) for name, make in given(box).items()},
        "learned, grid": {name: ask_once(make(), True) for name, make in learned(grid).items()},
        "learned, box": {name: ask_once(make(), False) for name, make in learned(box).items()},
    }


def main():
    from rounding import OtherRounding

    torch.set_num_threads(int(os.environ.get("TVBO_TEST_THREADS", "1")))
    seed = os.environ.get("TVBO_TEST_ROUNDING")
    rounds = int(sys.argv[sys.argv.index("--rounds") + 1])
    with OtherRounding(int(seed)) if seed else nullcontext():
        json.dump(all_choices(rounds), sys.stdout)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
