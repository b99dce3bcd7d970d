"""Optimizers of every kind, each with what a loop needs, for tests of recorded runs."""

import math
from copy import deepcopy
from functools import partial

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from tvbo import recipes
from tvbo.acquisition import LogEI
from tvbo.optimizers import Optimizer, RefitEvery
from tvbo.retention import EventReset, SizeLimit, SlidingWindow

BOX = [(0.0, 1.0), (0.0, 1.0)]
GRID = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
ARMS = torch.arange(4, dtype=torch.float64).unsqueeze(-1)
PRIORS = {"outputscale_prior": GammaPrior(2, 0.15)}


def kernel(**priors) -> ScaleKernel:
    return ScaleKernel(MaternKernel(2.5, **priors)).double()


GIVEN = {"covar_module": kernel(), "noise_variance": 0.01}
FORGETTING = {**GIVEN, "forgetting_rate": 0.05}
WINDOW = {
    "covar_module": ScaleKernel(MaternKernel(2.5, lengthscale_prior=GammaPrior(3, 6)), **PRIORS),
    "retention": SlidingWindow(15),
}

CASES = {
    "learned": partial(recipes.tv_gp_ucb, bounds=BOX),
    "static": partial(recipes.gp_ucb, bounds=BOX),
    "contexts": partial(recipes.tv_cgp_ucb, bounds=BOX, context_bounds=[(0.0, 1.0)]),
    "mixed": partial(
        recipes.tv_gp_ucb, bounds={"x": (0.0, 1.0), "kind": ["a", "b", "c"], "n": (1, 500)}
    ),
    "thompson": partial(recipes.gp_ts, bounds=BOX),
    "thompson of choices": partial(recipes.gp_ts, choices=GRID, **FORGETTING),
    "entropy": partial(recipes.compressed_gp, bounds=BOX, budget=0.05),
    "entropy discards": partial(
        recipes.compressed_gp, choices=GRID, **GIVEN, budget=0.1, mode="discard"
    ),
    "event resets": partial(recipes.gp_ucb, bounds=BOX, retention=EventReset(0.05)),
    "event resets of choices": partial(
        recipes.gp_ucb, choices=GRID, **GIVEN | {"noise_variance": 1e-3}, retention=EventReset(0.05)
    ),
    "streaming": partial(recipes.tv_gp_ucb, choices=GRID, **FORGETTING),
    "streaming, learned": partial(recipes.tv_gp_ucb, choices=GRID, refit=RefitEvery(10)),
    "resets": partial(recipes.r_gp_ucb, bounds=BOX, every=12),
    "window": partial(recipes.gp_ucb, bounds=BOX, **WINDOW),
    "expected improvement": partial(recipes.tv_gp_ucb, bounds=BOX, acquisition=LogEI()),
    "of BoTorch": partial(recipes.tv_gp_ucb, bounds=BOX, acquisition=qLogNoisyExpectedImprovement),
    "given": partial(recipes.tv_gp_ucb, bounds=BOX, **FORGETTING),
    "limit": partial(recipes.tv_gp_ucb, bounds=BOX, retention=SizeLimit(15)),
    "constraints": partial(recipes.tv_gp_ucb, bounds=BOX, constraints={"c": (None, 0.5)}),
    "objectives": partial(recipes.tv_gp_ucb, bounds=BOX, objectives=["a", "b"]),
    "elimination": partial(recipes.bpe_delay, choices=GRID, **GIVEN, horizon=60),
    "elimination on a box": partial(recipes.bpe_delay, bounds=BOX, **GIVEN, horizon=60),
    "random": partial(recipes.random_search, bounds=BOX),
    "linear": partial(recipes.linear_ucb, choices=ARMS, context_bounds=[(0.0, 1.0), (0.0, 1.0)]),
    "hours": partial(
        recipes.tv_gp_ucb,
        bounds={"x": (0.0, 1.0), "y": (1e-4, 1.0)},
        minimize=True,
        time_unit="1h",
        time_zone="Europe/Berlin",
    ),
}
"""Makes an optimizer by its kind."""


def made(kind: str, seed: int = 5) -> Optimizer:
    """A new optimizer, which shares no object with another."""
    make = CASES[kind]
    return make.func(**deepcopy(make.keywords), generator=seed)


def asked(optimizer: Optimizer, step: int) -> dict:
    """What an ask of a step is called with."""
    given = {}
    if optimizer.time_scale is not None:
        given["t"] = f"2026-03-29T{step // 2:02d}:{30 * (step % 2):02d}:00+01:00"
    if optimizer.contexts is not None:
        places = torch.arange(1, optimizer.contexts.dim + 1, dtype=torch.float64)
        given["context"] = (0.37 * step * places) % 1
    return given


def outcome(optimizer: Optimizer, trial) -> float | dict[str, float]:
    """The outcome of a trial, determined by its action and number."""
    x = trial.X[:, :2].clamp(0, 1) - 0.3 - 0.004 * trial.id
    y = -4 * x.square().sum().item() + 0.05 * math.sin(7 * trial.id)
    names = optimizer.labels.outcomes
    return {name: y * (1 + i) + 0.1 * i for i, name in enumerate(names)} if names else y


def play(optimizer: Optimizer, steps: int, first: int = 0) -> list:
    """Ask, and tell the oldest open trials, up to two of which wait; some fail or expire."""
    trials = []
    for step in range(first, first + steps):
        trials.append(optimizer.ask(**asked(optimizer, step)))
        while len(optimizer.open_trials) > step % 3:
            trial = optimizer.open_trials[0]
            if trial.id % 11 == 10:
                optimizer.fail(trial, "a crash")
            elif trial.id % 13 == 12:
                optimizer.expire(trial)
            else:
                optimizer.tell(trial, outcome(optimizer, trial))
    return trials
