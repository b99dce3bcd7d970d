"""Functions, delays, algorithms and runs that Figures 2 to 5 of Vakili et al. (2023) share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Generator, Tensor

from experiments.problems.rkhs import RKHSFunction
from experiments.spread import spread
from experiments.theory.delays import SubExponentialTail
from tvbo import run
from tvbo.acquisition import ConstantBeta, LogBeta
from tvbo.acquisition.ucb import BetaSchedule
from tvbo.evaluation import RandomDelay
from tvbo.optimizers import ConstantLiar, IgnorePending, Optimizer
from tvbo.optimizers.bpe import FiniteSetWidth, SubExponentialDelay
from tvbo.recipes import bpe_delay, gp_ts, gp_ucb
from tvbo.test_functions.drifting_gp import unit_grid

LENGTHSCALES = {"f1": 0.8, "f2": 1.0}
FUNCTION_SEEDS = {"f1": 1, "f2": 2}
NOISE_VARIANCE = 0.02**2
RATES = (0, 25, 50)
XI, B, DELTA = 9.0, 1.0, 0.01
MULTIPLIER = 6.0
"""Multiplier on the standard deviation in the bounds of BPE and BPE-Delay, the authors' β. No
theorem holds with it; :data:`THEOREM` has the widths of one."""

BETAS = {"6 σ": ConstantBeta(MULTIPLIER**2), "β = 0.8 log 4t": LogBeta(c1=0.8, c2=4.0)}
"""β of the upper confidence bounds: as wide as the bounds of BPE, and the usual schedule."""

NOISE_SEED, DELAY_SEED, OPTIMIZER_SEED = 1_000_000, 2_000_000, 3_000_000
"""Offsets of the seed of a run, so that noise and delays are independent."""


@dataclass(frozen=True)
class Setting:
    """Size of the experiments.

    Args:
        points: Grid points per side of ``[-5, 5]^2``.
        horizon: T, in rounds.
        num_centers: Points at which a Gaussian process is drawn and interpolated.
    """

    points: int = 50
    horizon: int = 1000
    num_centers: int = 100


@dataclass(frozen=True)
class Task:
    """Problem and delays for which an algorithm is created.

    Args:
        problem: The function with its kernel.
        rate: λ of the delays.
        horizon: T.
        generator: Generator of the algorithm.
    """

    problem: RKHSFunction
    rate: float
    horizon: int
    generator: Generator

    @property
    def model(self) -> dict:
        """Return the arguments of all recipes: the true kernel and the true noise variance."""
        return {
            "choices": self.problem.choices,
            "covar_module": self.problem.covar_module,
            "noise_variance": NOISE_VARIANCE,
            "generator": self.generator,
        }


def _bpe(task: Task) -> Optimizer:
    no_delay = SubExponentialDelay.constant(0.0)
    return bpe_delay(
        **task.model, horizon=task.horizon, delta=DELTA, delay=no_delay, width=MULTIPLIER
    )


def _bpe_delay(task: Task) -> Optimizer:
    delay = SubExponentialDelay(task.rate, XI, B)
    return bpe_delay(**task.model, horizon=task.horizon, delta=DELTA, delay=delay, width=MULTIPLIER)


def _theorem(task: Task) -> Optimizer:
    """Return BPE-Delay with the widths of Theorem 6.1 and an upper bound on all delays."""
    delay = SubExponentialTail(SubExponentialDelay(task.rate, XI, B))
    width = FiniteSetWidth(task.problem.norm, noise_sd=NOISE_VARIANCE**0.5)
    return bpe_delay(**task.model, horizon=task.horizon, delta=DELTA, delay=delay, width=width)


def _gp_ucb_sdf(task: Task, beta: BetaSchedule) -> Optimizer:
    return gp_ucb(**task.model, pending=ConstantLiar(task.problem.minimum), beta=beta)


def _gp_ts_sdf(task: Task) -> Optimizer:
    return gp_ts(**task.model, pending=ConstantLiar(task.problem.minimum))


def _gp_bucb(task: Task, beta: BetaSchedule) -> Optimizer:
    return gp_ucb(**task.model, beta=beta)


def _ignoring(task: Task, beta: BetaSchedule) -> Optimizer:
    return gp_ucb(**task.model, beta=beta, pending=IgnorePending())


def by_width(name: str) -> tuple[str, ...]:
    """Return the names of an algorithm with each of the two widths."""
    return tuple(f"{name}, {beta}" for beta in BETAS)


def _of_each_width(
    names: Sequence[str], make: Callable[[Task, BetaSchedule], Optimizer]
) -> dict[str, Callable[[Task], Optimizer]]:
    pairs = zip(names, BETAS.values(), strict=True)
    return {name: partial(make, beta=beta) for name, beta in pairs}


BPE, BPE_DELAY, GP_TS_SDF = "BPE", "BPE-Delay", "GP-TS-SDF"
THEOREM = "BPE-Delay, Theorem 6.1"
GP_UCB_SDF = by_width("GP-UCB-SDF")
GP_BUCB = by_width("GP-BUCB")
IGNORING = by_width("GP-UCB, pending ignored")
PLAYERS: dict[str, Callable[[Task], Optimizer]] = {
    BPE_DELAY: _bpe_delay,
    THEOREM: _theorem,
    BPE: _bpe,
}
PLAYERS |= _of_each_width(GP_UCB_SDF, _gp_ucb_sdf)
PLAYERS[GP_TS_SDF] = _gp_ts_sdf
PLAYERS |= _of_each_width(GP_BUCB, _gp_bucb)
PLAYERS |= _of_each_width(IGNORING, _ignoring)


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        setting: Size of the experiment.
        function: f1 or f2.
        rate: λ of the delays.
        player: Name of the algorithm.
        seed: Seed of noise and delays, the same for all algorithms, and of the algorithm.
    """

    setting: Setting
    function: str
    rate: float
    player: str
    seed: int


def play(job: Job) -> Tensor:
    """Return the regret of one run by round, ``T``."""
    horizon = job.setting.horizon
    problem = function(job.setting, job.function, _generator(NOISE_SEED + job.seed))
    delay = poisson_delay(job.rate, _generator(DELAY_SEED + job.seed))
    task = Task(problem, job.rate, horizon, _generator(OPTIMIZER_SEED + job.seed))
    optimizer = PLAYERS[job.player](task)
    return run(problem, optimizer, horizon=horizon, delay=delay, progress=False).regret


def poisson_delay(rate: float, generator: Generator | None = None) -> RandomDelay:
    """Return whole delays from a Poisson distribution with mean ``rate`` (Section 7)."""
    mean = torch.tensor(rate, dtype=torch.float64)
    return RandomDelay(partial(torch.poisson, mean), generator)


def regret(
    setting: Setting,
    players: Sequence[str],
    rates: Sequence[float],
    trials: int,
    seed: int,
    label: str,
    progress: bool,
    executor: Executor | None,
) -> dict[str, Tensor]:
    """Return the regret by round of several algorithms on both functions.

    The regret of each :func:`row` is ``replicates x T``.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    if trials < 1:
        raise ValueError(f"Expected trials >= 1. Got {trials}.")
    kinds = list(product(LENGTHSCALES, rates, players))
    jobs = [Job(setting, *kind, seed + i) for kind in kinds for i in range(trials)]
    runs = iter(spread(play, jobs, executor, label, progress))
    return {row(*kind): torch.stack([next(runs) for _ in range(trials)]) for kind in kinds}


def row(function: str, rate: float, player: str) -> str:
    """Return the name of the runs of an algorithm on a function with delays of one rate."""
    return f"{function}, λ = {rate}, {player}"


def function(setting: Setting, name: str, generator: Generator) -> RKHSFunction:
    """Return f1 or f2, the same for all runs, with its noise from the generator."""
    drawn = _drawn(setting, name)
    return RKHSFunction(
        drawn.choices,
        drawn.centers,
        drawn.weights,
        drawn.covar_module,
        noise_variance=NOISE_VARIANCE,
        generator=generator,
    )


@lru_cache(maxsize=len(LENGTHSCALES))
def _drawn(setting: Setting, name: str) -> RKHSFunction:
    return RKHSFunction.draw(
        10 * unit_grid(setting.points) - 5,
        _kernel(LENGTHSCALES[name]),
        num_centers=setting.num_centers,
        generator=_generator(FUNCTION_SEEDS[name]),
    )


def _kernel(lengthscale: float) -> Kernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def _generator(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)
