"""Figure 3(a) of Bogunovic et al. (2016): the sensor that is the warmest now."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import torch
from torch import Generator, Tensor

from experiments.algorithms.rexp3 import RExp3, rexp3_block_length
from experiments.claims import (
    BEST_OF_TRAINING,
    Claim,
    Reproduction,
    claim_below,
    claim_rate,
    claims_against_training,
    mean_and_error,
    regret_result,
)
from experiments.data.empirical import EmpiricalPanel
from experiments.spread import spread
from tvbo import recipes, run
from tvbo.acquisition import LogBeta
from tvbo.logs import DriftFit, fit_drift
from tvbo.logs.dataset import panel_rows
from tvbo.optimizers import Optimizer
from tvbo.test_functions.panel import PanelProblem

NAME = "bogunovic-fig3a"
TITLE = "Temperatures of 46 sensors, 10-minute steps, average regret in °C"
NOISE_VARIANCE = 0.5
BETA = LogBeta(c1=0.8, c2=0.4)
RESET_EVERY = 15
REWARD_MARGIN = 5.0
"""Margin of the reward bounds of Exp3 beyond the training temperatures, in °C."""


def fit_training(data: EmpiricalPanel) -> DriftFit:
    """Fit ε to the training days, with kernel and noise as in the paper."""
    steps = torch.arange(len(data.train), dtype=torch.float64)
    train_X, train_Y = panel_rows(data.train, steps)
    return fit_drift(
        train_X,
        train_Y,
        covar_module=data.covar_module,
        noise_variance=NOISE_VARIANCE,
        mean=data.mean,
        time_unit=data.time_unit,
        outliers=False,
    )


def bogunovic_fig3a(
    data: EmpiricalPanel,
    trials: int = 20,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Figure 3(a): five algorithms, and the sensor that was the warmest in training.

    With the paper's schedule β is zero in the first two rounds, so that all 46 sensors are ties in
    the first round: each replicate breaks them by its seed, the same for all algorithms.

    Args:
        data: The temperatures, from :func:`experiments.data.intel_lab.intel_lab`.
        trials: Number of paired replicates.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        progress: Show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    if trials < 1:
        raise ValueError(f"Expected trials >= 1. Got {trials}.")
    fit = fit_training(data)
    horizon = len(data.test)
    seeds = range(seed, seed + trials)
    played = spread(partial(_play, data, fit.forgetting_rate), seeds, executor, NAME, progress)
    curves = {name: torch.stack([regret[name] for regret in played]) for name in played[0]}
    low, high = fit.forgetting_rate_interval
    return Reproduction(
        name=NAME,
        title=TITLE,
        settings={
            "trials": trials,
            "seed": seed,
            "forgetting_rate": fit.forgetting_rate,
            "forgetting_rate_interval": [low, high],
            "noise_variance": NOISE_VARIANCE,
            "c1": BETA.c1,
            "c2": BETA.c2,
            "reset_every": RESET_EVERY,
            "train_steps": len(data.train),
            "test_steps": horizon,
        },
        results={name: regret_result(rows) for name, rows in curves.items()},
        claims=_claims(curves, fit),
        regret=curves,
    )


def _play(data: EmpiricalPanel, forgetting_rate: float, seed: int) -> dict[str, Tensor]:
    """Return the regret of all algorithms in one replicate, ``T``."""
    problem = PanelProblem(data.test - data.mean)
    horizon = len(data.test)
    regret = {}
    for name, make in _algorithms(data, problem, forgetting_rate, horizon).items():
        generator = torch.Generator().manual_seed(seed)
        regret[name] = run(problem, make(generator), horizon=horizon, progress=False).regret
    regret[BEST_OF_TRAINING] = data.test.amax(dim=1) - data.test[:, data.best_arm]
    return regret


def _algorithms(
    data: EmpiricalPanel, problem: PanelProblem, forgetting_rate: float, horizon: int
) -> dict[str, Callable[[Generator], Optimizer]]:
    shared = {
        "choices": problem.choices,
        "covar_module": data.covar_module,
        "noise_variance": NOISE_VARIANCE,
        "beta": BETA,
    }
    low = data.train.min().item() - data.mean - REWARD_MARGIN
    high = data.train.max().item() - data.mean + REWARD_MARGIN
    # Total change of the training days, per test horizon, on Exp3's scale of 0 to 1.
    change = data.train.diff(dim=0).abs().amax(dim=1).mean().item() * horizon / (high - low)
    block = rexp3_block_length(len(problem.choices), horizon, change)
    return {
        "TV-GP-UCB": lambda g: recipes.tv_gp_ucb(
            forgetting_rate=forgetting_rate, generator=g, **shared
        ),
        "R-GP-UCB": lambda g: recipes.r_gp_ucb(every=RESET_EVERY, generator=g, **shared),
        "GP-UCB": lambda g: recipes.gp_ucb(generator=g, **shared),
        "RExp3": lambda g: RExp3(
            choices=problem.choices, block=block, reward_bounds=(low, high), generator=g
        ),
        "random": lambda g: recipes.random_search(choices=problem.choices, generator=g),
    }


def _claims(regret: dict[str, Tensor], fit: DriftFit) -> list[Claim]:
    mean = {name: rows.mean(dim=1) for name, rows in regret.items()}
    quarter = regret["random"].shape[1] // 4
    half = 2 * quarter
    tv, resetting = regret["TV-GP-UCB"], regret["R-GP-UCB"]
    gap = resetting - tv
    early, late = gap[:, :half].sum(dim=1), gap.sum(dim=1)
    return [
        claim_rate(
            "the training days give ε by maximum likelihood near 0.03 (0.02 to 0.04)",
            fit,
            low=0.02,
            high=0.04,
            paper="0.03",
        ),
        claim_below(
            "R-GP-UCB minus TV-GP-UCB, mean regret: above 0", mean["TV-GP-UCB"], mean["R-GP-UCB"]
        ),
        claim_below(
            "the cumulative gap R-GP-UCB minus TV-GP-UCB grows in the second half: above 0",
            early,
            late,
        ),
        claim_below(
            "GP-UCB minus R-GP-UCB, mean regret: above 0", mean["R-GP-UCB"], mean["GP-UCB"]
        ),
        claim_below("random minus GP-UCB, mean regret: above 0", mean["GP-UCB"], mean["random"]),
        claim_below(
            "GP-UCB is good for a short time: random minus GP-UCB, first quarter: above 0",
            regret["GP-UCB"][:, :quarter].mean(dim=1),
            regret["random"][:, :quarter].mean(dim=1),
        ),
        _barely_better(
            regret["GP-UCB"][:, -quarter:].mean(dim=1), regret["random"][:, -quarter:].mean(dim=1)
        ),
        _comparable(mean["RExp3"], mean["GP-UCB"]),
        *claims_against_training(mean, ["TV-GP-UCB", "R-GP-UCB", "GP-UCB"]),
    ]


def _barely_better(gp_ucb: Tensor, random: Tensor) -> Claim:
    figure, error = mean_and_error(gp_ucb / random)
    return Claim(
        "GP-UCB ends barely better than random: its regret over random's, last quarter: above 0.8",
        figure > 0.8,
        figure,
        error,
    )


def _comparable(rexp3: Tensor, gp_ucb: Tensor) -> Claim:
    figure, error = mean_and_error(rexp3 - gp_ucb)
    return Claim(
        "RExp3 performs comparably to GP-UCB: RExp3 minus GP-UCB, mean regret: within two standard "
        "errors of 0",
        abs(figure) <= 2 * (error or 0.0),
        figure,
        error,
    )
