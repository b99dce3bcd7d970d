"""Algorithms, runs and clock times that Tables 2, 3 and 4 of Bedi et al. share."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Generator, Tensor

from experiments.algorithms.bkb import BKB
from experiments.problems.static_functions import ExampleFunction
from experiments.spread import spread
from experiments.theory.beta import FiniteBeta
from tvbo import run
from tvbo.acquisition import UCB, Acquisition, ConstantBeta, LogEI, MaxMean
from tvbo.evaluation import History
from tvbo.fit.model_fitter import ModelFitter
from tvbo.optimizers import GPOptimizer, Optimizer, OutcomeModel
from tvbo.optimizers.pending import Pending
from tvbo.retention import EntropyThreshold, Retention
from tvbo.retention.entropy import compression_budget
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.drifting_gp import unit_grid

NOISE_VARIANCE = 0.001
DELTA = 0.9
PAPER_BUDGET = 1e-4
DENSE, REFACTORED = "dense", "dense, new factor each round"
COMPRESSED, PAPERS = "compressed", "compressed, ε = 1e-4"
GROWING = "UCB, growing β"
"""UCB with the width of each round; the others have that of the last round."""


def exponent(dim: int) -> float:
    """Return α = 3/(4p), inside the interval (0, 1/p) of the theorems, near its dense end."""
    return 3 / (4 * dim)


def unit_kernel() -> Kernel:
    """Return a squared exponential kernel of length-scale 1 and variance 1."""
    kernel = RBFKernel().to(torch.float64)
    kernel.lengthscale = torch.ones(1, dtype=torch.float64)
    return kernel


@dataclass(frozen=True)
class Setting:
    """One of the three experiments.

    Args:
        problem: Function from the generator of the noise to the problem.
        choices: ``n x p``, the actions.
        horizon: T, in rounds.
        paper_seconds: The paper's clock times by acquisition: dense, compressed, BKB.
        unit: Unit of the paper's clock times.
    """

    problem: Callable[..., DriftingProblem]
    choices: Tensor
    horizon: int
    paper_seconds: dict[str, tuple[float, float, float]]
    unit: str

    @property
    def dim(self) -> int:
        """Dimension ``p`` of the actions."""
        return self.choices.shape[-1]

    @property
    def num_first(self) -> int:
        """Number of points of the first dictionary, whose actions are random."""
        return int(2**self.dim)

    @property
    def budget(self) -> float:
        """ε in nats."""
        return compression_budget(horizon=self.horizon, alpha=exponent(self.dim), dim=self.dim)

    def acquisitions(self) -> dict[str, Acquisition]:
        """Return the paper's three rules, and UCB with a growing width.

        The width of a confidence band may be that of the last round in every round: the regret
        bound has it in any case. While the width grows, so does the set of actions worth trying.
        """
        beta = FiniteBeta(len(self.choices), DELTA)
        # The paper's rounds begin after the first dictionary, whose trials are attached.
        growing = UCB(lambda n: beta(n - self.num_first))
        return {
            "UCB": UCB(ConstantBeta(beta(self.horizon))),
            "EI": LogEI(),
            "MPI": LogEI(MaxMean()),
            GROWING: growing,
        }

    def optimizer(self, method: str, acquisition: Acquisition, generator: Generator) -> Optimizer:
        """Return an optimizer on the finite set.

        The dense and the compressed model are both updated by a new row of their factor.
        """
        search_space = FiniteSpace(self.choices)
        if method == "BKB":
            return BKB(
                search_space, unit_kernel(), NOISE_VARIANCE, acquisition, generator=generator
            )
        fitter = ModelFitter(
            InputLayout(self.dim),
            search_space.bounds,
            covar_module=unit_kernel(),
            forgetting_rate=0.0,
            noise_variance=NOISE_VARIANCE,
        )
        budgets = {COMPRESSED: self.budget, PAPERS: PAPER_BUDGET}
        retention: Retention | None = None
        if method in budgets:
            retention = EntropyThreshold(budgets[method])
        models = [(Refactored if method == REFACTORED else OutcomeModel)(fitter, retention)]
        return GPOptimizer(search_space, models, acquisition, generator=generator)


class Refactored(OutcomeModel):
    """A model whose factor is computed from all observations in each round."""

    def condition(
        self,
        t: float,
        open_rows: list[Tensor],
        pending: Pending,
        generator: Generator,
        sign: float = 0.0,
    ) -> None:
        """Forget the factor."""
        self.restart()
        super().condition(t, open_rows, pending, generator, sign)


@dataclass(frozen=True)
class Curves:
    """Results of one algorithm, each ``replicates x T``.

    Args:
        regret: Regret of each round.
        model_order: Number of points in the model in each round.
        seconds: Clock time of each round: choosing, learning and evaluating.
        evaluated: Whether the action of each round was evaluated.
    """

    regret: Tensor
    model_order: Tensor
    seconds: Tensor
    evaluated: Tensor

    @classmethod
    def of(cls, histories: list[History]) -> Curves:
        """Return the curves of several runs."""
        frames = [history.to_frame() for history in histories]
        columns = {
            "regret": [frame.regret for frame in frames],
            "model_order": [frame.model_size for frame in frames],
            "seconds": [frame.seconds + frame.evaluation_seconds for frame in frames],
            "evaluated": [frame.evaluated for frame in frames],
        }
        return cls(**{name: torch.tensor(rows).double() for name, rows in columns.items()})


def play(
    setting: Setting,
    trials: dict[str, int],
    seed: int,
    progress: bool,
    label: str,
    executor: Executor | None = None,
) -> dict[str, Curves]:
    """Run every acquisition with every method, alternating, so that machine load affects all alike.

    Clock times are those of the process of a run, and are affected by other processes on the same
    machine.

    Args:
        setting: The experiment.
        trials: Number of replicates by method.
        seed: The replicates use the seeds ``seed, seed + 1, ...``, the same for all.
        progress: Whether to show a progress bar.
        label: Description of the bar.
        executor: Executor that runs the replicates; None runs them serially.

    Returns:
        Curves by ``"acquisition, method"``.

    Raises:
        ValueError: if the horizon is below 2, so that there is no last half.
    """
    if setting.horizon < 2:
        raise ValueError(f"Expected horizon >= 2 rounds. Got {setting.horizon}.")
    jobs = [
        (seed + trial, name, method)
        for trial in range(max(trials.values()))
        for name in setting.acquisitions()
        for method, number in trials.items()
        if trial < number
        and (name != GROWING or (trial < trials[PAPERS] and method in (DENSE, COMPRESSED)))
    ]
    histories: dict[str, list[History]] = {}
    played = spread(partial(_play_job, setting), jobs, executor, label, progress)
    for (_, name, method), history in zip(jobs, played, strict=True):
        histories.setdefault(f"{name}, {method}", []).append(history)
    return {name: Curves.of(runs) for name, runs in histories.items()}


def _play_job(setting: Setting, job: tuple[int, str, str]) -> History:
    seed, name, method = job
    _warm_up(method)
    return _play_once(setting, setting.acquisitions()[name], method, seed)


@cache
def _warm_up(method: str) -> None:
    """Run a method once without timing, since the first run of a process is slower."""
    choices = unit_grid(8, dim=1)
    setting = Setting(partial(ExampleFunction, choices), choices, 2, {}, "")
    _play_once(setting, LogEI(), method, seed=0)


def _play_once(setting: Setting, acquisition: Acquisition, method: str, seed: int) -> History:
    generator = torch.Generator().manual_seed(seed)
    problem = setting.problem(generator=torch.Generator().manual_seed(seed + 10_000))
    optimizer = setting.optimizer(method, acquisition, generator)
    first = torch.randperm(len(setting.choices), generator=generator)[: setting.num_first]
    for x in setting.choices[first]:
        trial = optimizer.attach(x, t=0.0)
        optimizer.tell(trial, problem(problem.layout.rows(trial.X, 0.0)))
    return run(problem, optimizer, horizon=setting.horizon, progress=False)


def growth(model_order: Tensor) -> Tensor:
    """Return the growth of the model in the last half of the rounds, ``replicates``."""
    return model_order[:, -1] - model_order[:, model_order.shape[1] // 2 - 1]


def excess(compressed: Tensor, dense: Tensor) -> tuple[float, float | None]:
    """Return mean regret divided by that of the dense model, minus 1, and its standard error.

    Args:
        compressed: ``replicates x T``.
        dense: ``replicates x T``, of the same seeds.

    Returns:
        The share, and its standard error by the delta method; None for a single replicate.
    """
    one, two = compressed.mean(dim=1), dense.mean(dim=1)
    ratio = one.mean() / two.mean()
    if len(one) == 1:
        return (ratio - 1).item(), None
    error = (one - ratio * two).std() / two.mean() / math.sqrt(len(one))
    return (ratio - 1).item(), error.item()
