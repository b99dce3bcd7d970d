"""Figure 3 of Krause, Ong (2011): the warmest sensors by time of day."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import torch
from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from experiments.algorithms.separate import SeparateContexts
from experiments.claims import Reproduction
from experiments.data.intel_lab import SensorDays
from experiments.krause.fig3_claims import (
    BEST_OF_TRAINING,
    CGP,
    DRIFTING,
    MERGED,
    MERGED_COMMON,
    MERGED_DRIFTING,
    SEPARATE,
    SEPARATE_COMMON,
    make_claims,
    regret_of_steps,
    summarize,
)
from experiments.krause.fig3_fit import Prior, fit_prior, matern_of_the_day, no_kernel
from experiments.problems.time_of_day import HOURS_PER_DAY, TimeOfDayPanel
from experiments.spread import spread
from tvbo import recipes, run
from tvbo.acquisition import LogBeta
from tvbo.kernels import IdentityKernel
from tvbo.optimizers import Optimizer

NAME = "krause-fig3"
PER_STEP = 5
BETA = LogBeta(c1=0.8, c2=0.4)
"""Schedule of Bogunovic et al. (2016) for temperatures; the paper states none."""


def krause_fig3(
    data: SensorDays,
    trials: int = 3,
    seed: int = 0,
    per_step: int = PER_STEP,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Figure 3: choose several sensors per step, with a prior from the first day.

    The first 24 hours give each algorithm its prior by maximum marginal likelihood, from the
    readings of all sensors at half of the steps, drawn at random: another half in each trial. Each
    has the prior of a model of its own kind; the paper's two baselines are run once more with the
    spatial part of CGP-UCB's, since the paper speaks of one covariance function for all. The rest
    of the days is the run, which begins without observations. In each step, ``per_step`` sensors
    are asked for, each after the reading of the one before has been told; one may be asked for
    again. The baseline chooses in every step the ``per_step`` sensors with the largest means over
    the training steps. Times are in hours, and ε is per hour.

    Args:
        data: The temperatures, from :func:`experiments.data.intel_lab.intel_lab_days`.
        trials: Number of paired replicates.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``: for the steps that are
            learned from, and for ties.
        per_step: Sensors per step.
        progress: Show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` or ``per_step`` is not positive, or the data ends within a day.
    """
    if trials < 1 or per_step < 1:
        raise ValueError(f"Expected trials >= 1 and per_step >= 1. Got {trials}, {per_step}.")
    train = data.times < HOURS_PER_DAY
    if train.all():
        raise ValueError(
            f"Expected more than a day of readings. Got the last at {data.times[-1]:g} h."
        )
    seeds = range(seed, seed + trials)
    # A prior that several algorithms share is fitted once.
    fits = [(s, *prior) for s in seeds for prior in dict.fromkeys(map(_prior_of, ALGORITHMS))]
    found = spread(partial(_fit, data), fits, executor, f"{NAME}: priors", progress)
    fitted = dict(zip(fits, found, strict=True))
    plan = [(s, name, fitted[s, *_prior_of(name)]) for s in seeds for name in ALGORITHMS]
    played = spread(partial(_play_trial, data, per_step), plan, executor, NAME, progress)
    priors: dict[str, list[Prior]] = {name: [] for name in ALGORITHMS}
    regret: dict[str, list[Tensor]] = {name: [] for name in ALGORITHMS}
    repeated: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for (_, name, prior), (rows, share) in zip(plan, played, strict=True):
        priors[name].append(prior)
        regret[name].append(rows)
        repeated[name].append(share)
    repeated[BEST_OF_TRAINING] = [0.0] * trials
    regret[BEST_OF_TRAINING] = [_regret_of_training(data, per_step, s) for s in seeds]
    curves = {name: torch.stack(rows) for name, rows in regret.items()}
    hours = data.times[~train] - HOURS_PER_DAY
    return Reproduction(
        name=NAME,
        title=f"Temperatures of {len(data.arms)} sensors, {per_step} of them asked in each step of "
        f"5 minutes, {len(hours)} steps, mean regret in °C",
        settings={
            "trials": trials,
            "seed": seed,
            "per_step": per_step,
            "c1": BETA.c1,
            "c2": BETA.c2,
            "train_steps": int(train.sum()),
            "test_steps": len(hours),
            "steps_fitted": (int(train.sum()) + 1) // 2,
            "priors": {
                name: [p.settings() for p in of_trials] for name, of_trials in priors.items()
            },
        },
        results={
            name: {**summarize(rows), "share_repeated": sum(repeated[name]) / trials}
            for name, rows in curves.items()
        },
        claims=make_claims(curves, hours),
        regret=curves,
    )


def _prior_of(name: str) -> tuple[Callable[[], Kernel | None], bool]:
    """Return the settings with which the prior of an algorithm is fitted."""
    return ALGORITHMS[name].context_kernel, ALGORITHMS[name].drifts


def _fit(data: SensorDays, job: tuple[int, Callable[[], Kernel | None], bool]) -> Prior:
    """Fit the prior of one replicate to half of the first day."""
    seed, context_kernel, drifts = job
    train = data.times < HOURS_PER_DAY
    half = _half(int(train.sum()), torch.Generator().manual_seed(seed))
    return fit_prior(
        data.values[train][half],
        data.times[train][half],
        data.positions,
        context_kernel(),
        drifts,
    )


def _play_trial(
    data: SensorDays, per_step: int, job: tuple[int, str, Prior]
) -> tuple[Tensor, float]:
    """Return the regret by step of one replicate of an algorithm, and its share of repeats."""
    seed, name, prior = job
    train = data.times < HOURS_PER_DAY
    generator = torch.Generator().manual_seed(seed)
    # Ties are broken by the draws after those of the training steps.
    _half(int(train.sum()), generator)
    problem = TimeOfDayPanel(data.values[~train] - prior.mean, data.times[~train], data.positions)
    chosen = _play(problem, ALGORITHMS[name].make(problem, prior, generator), per_step)
    return regret_of_steps(problem.values, chosen), _share_repeated(chosen)


def _regret_of_training(data: SensorDays, per_step: int, seed: int) -> Tensor:
    """Return the regret by step of always choosing the best sensors of the training steps."""
    train = data.times < HOURS_PER_DAY
    half = _half(int(train.sum()), torch.Generator().manual_seed(seed))
    means = data.values[train][half].mean(dim=0)
    best = means.topk(min(per_step, len(means))).indices
    values = data.values[~train]
    return regret_of_steps(values, best.expand(len(values), -1))


def _half(steps: int, generator: Generator) -> Tensor:
    """Return a random half of the steps, in order."""
    return torch.randperm(steps, generator=generator)[: (steps + 1) // 2].sort().values


def _contextual(problem: TimeOfDayPanel, prior: Prior, generator: Generator) -> Optimizer:
    return recipes.tv_cgp_ucb(
        choices=problem.choices,
        contexts=problem.contexts,
        action_kernel=prior.action_kernel,
        context_kernel=prior.context_kernel,
        forgetting_rate=prior.forgetting_rate,
        noise_variance=prior.noise_variance,
        beta=BETA,
        generator=generator,
    )


def _merged(problem: TimeOfDayPanel, prior: Prior, generator: Generator) -> Optimizer:
    return recipes.tv_gp_ucb(
        choices=problem.choices,
        covar_module=prior.action_kernel,
        forgetting_rate=prior.forgetting_rate,
        noise_variance=prior.noise_variance,
        beta=BETA,
        generator=generator,
    )


def _separate(problem: TimeOfDayPanel, prior: Prior, generator: Generator) -> Optimizer:
    def make(generator: Generator) -> Optimizer:
        return recipes.gp_ucb(
            choices=problem.choices,
            covar_module=prior.action_kernel,
            noise_variance=prior.noise_variance,
            beta=BETA,
            generator=generator,
        )

    return SeparateContexts(problem.choices, problem.contexts, make, generator)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm with its prior.

    Args:
        context_kernel: Function that returns the kernel over times of day of the prior.
        drifts: Whether ε is fitted as well; otherwise it is 0.
        make: Function from the prior to the optimizer, which may ignore parts of it.
    """

    context_kernel: Callable[[], Kernel | None]
    drifts: bool
    make: Callable[[TimeOfDayPanel, Prior, Generator], Optimizer]


ALGORITHMS = {
    CGP: Algorithm(matern_of_the_day, False, _contextual),
    MERGED: Algorithm(no_kernel, False, _merged),
    SEPARATE: Algorithm(IdentityKernel, False, _separate),
    MERGED_COMMON: Algorithm(matern_of_the_day, False, _merged),
    SEPARATE_COMMON: Algorithm(matern_of_the_day, False, _separate),
    DRIFTING: Algorithm(matern_of_the_day, True, _contextual),
    MERGED_DRIFTING: Algorithm(no_kernel, True, _merged),
}


def _play(problem: TimeOfDayPanel, optimizer: Optimizer, per_step: int) -> Tensor:
    """Return the indices of the chosen sensors, ``T x per_step``."""
    times = problem.times.repeat_interleave(per_step).tolist()
    history = run(problem, optimizer, horizon=len(times), times=times, progress=False)
    return problem.search_space.index(history.X).reshape(-1, per_step)


def _share_repeated(chosen: Tensor) -> float:
    """Return the share of readings, after the first of a step, that repeat a sensor."""
    _, per_step = chosen.shape
    if per_step == 1:
        return 0.0
    distinct = 1 + (chosen.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    return (per_step - distinct).double().mean().item() / (per_step - 1)
