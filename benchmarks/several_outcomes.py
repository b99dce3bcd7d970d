"""A constraint that drifts, and two objectives that drift, on the unit square.

Constraint: the peak of a throughput moves along the first coordinate while a latency moves the
other way and must stay below 100 ms, which at times keeps the peak out of reach; noise 0.03 and
2 ms. A round whose action is too slow gains nothing: its regret is that of the worst feasible
action.

Objectives: the peaks of two objectives move in opposite phases; noise 0.02. In every fifth round
the hypervolume of the front recommended now is computed, of the true values at the present, as a
share of that of the best front. BoTorch's loops recommend all of 1,024 actions whose posterior
means no other one dominates, ours what `front` returns.

All hyperparameters are learned. Each loop begins with the same ten Sobol actions.

    python benchmarks/several_outcomes.py constraint --seeds 10 --json docs/results/constraint.json
    python benchmarks/several_outcomes.py objectives --seeds 10 --json docs/results/objectives.json
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective import Hypervolume, is_non_dominated
from gpytorch.mlls import SumMarginalLogLikelihood
from rich.progress import track
from shared import COMPARED, compared, mean_error, parser, show
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from tvbo import recipes

NUM_INITIAL = 10
LIMIT = 100.0
SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
GRID = SobolEngine(2, scramble=True, seed=7).draw(1024, dtype=torch.float64)


class Service:
    """The problem with a constraint."""

    names = ("throughput", "latency")
    noise = torch.tensor([0.03, 2.0], dtype=torch.float64)
    horizon, first = 100, 31

    def __init__(self, seed: int):
        self.phase = 2 * math.pi * seed / 10

    def values(self, X: Tensor, t: float) -> Tensor:
        """Return throughput and latency, ``n x 2``."""
        shift = 0.35 * math.sin(2 * math.pi * t / 60 + self.phase)
        center = torch.tensor([0.5 + shift, 0.5], dtype=torch.float64)
        throughput = torch.exp(-(X - center).square().sum(-1) / 0.1)
        latency = LIMIT + 80 * (X[:, 0] - 0.6 + 0.8 * shift) + 40 * (X[:, 1] - 0.5).square()
        return torch.stack([throughput, latency], dim=-1)

    def regret(self, X: Tensor, t: float) -> tuple[float, bool]:
        """Return the regret of an action, and whether it is feasible."""
        throughput, latency = self.values(DENSE, t).unbind(-1)
        feasible = throughput[latency <= LIMIT]
        value, delay = self.values(X, t)[0].tolist()
        gained = value if delay <= LIMIT else feasible.min().item()
        return feasible.max().item() - gained, delay <= LIMIT


class TwoPeaks:
    """The problem with two objectives."""

    names = ("first", "second")
    noise = torch.tensor([0.02, 0.02], dtype=torch.float64)
    horizon, first = 80, 30

    def __init__(self, seed: int):
        self.phase = 2 * math.pi * seed / 10

    def values(self, X: Tensor, t: float) -> Tensor:
        """Return both objectives, ``n x 2``."""
        shift = 0.35 * math.sin(2 * math.pi * t / 60 + self.phase)
        centers = torch.tensor([[0.5 + shift, 0.3], [0.5 - shift, 0.7]], dtype=torch.float64)
        return torch.exp(-(X.unsqueeze(1) - centers).square().sum(-1) / 0.2)

    def share(self, X: Tensor, t: float) -> float:
        """Return the hypervolume of actions as a share of the largest."""
        found, best = (hypervolume(self.values(each, t)) for each in (X, DENSE))
        return found / best


AXIS = torch.linspace(0, 1, 101, dtype=torch.float64)
DENSE = torch.cartesian_prod(AXIS, AXIS)


def hypervolume(values: Tensor) -> float:
    """Return the hypervolume above zero."""
    front = values[is_non_dominated(values)]
    return Hypervolume(torch.zeros(2, dtype=torch.float64)).compute(front)


class Loop(Protocol):
    """A method: it is asked, told, and says which actions it recommends now."""

    def ask(self, t: float) -> Tensor:
        """Return an action, ``1 x 2``."""

    def tell(self, X: Tensor, t: float, Y: Tensor) -> None:
        """Take in the outcomes of an action."""

    def front(self, t: float) -> Tensor:
        """Return the recommended actions."""


class Ours:
    """The default of ``tv_gp_ucb``, told all outcomes, or one of them and what stands for it."""

    def __init__(self, seed: int, rejected: str | None = None, **options: Any):
        self.rejected, self.worst = rejected, math.inf
        generator = Generator().manual_seed(seed)
        bounds = [(0.0, 1.0)] * 2
        self.optimizer: Any = recipes.tv_gp_ucb(bounds=bounds, generator=generator, **options)

    def ask(self, t: float) -> Tensor:
        """Return an action, ``1 x 2``."""
        self.trial = self.optimizer.ask(t)
        return self.trial.X

    def tell(self, X: Tensor, t: float, Y: Tensor) -> None:
        """Take in the outcomes of an action."""
        trial = self.optimizer.attach(X, t) if t <= NUM_INITIAL else self.trial
        if self.rejected is None:
            self.optimizer.tell(trial, Y)
            return
        value, latency = Y.tolist()
        self.worst = min(self.worst, value)
        if latency <= LIMIT:
            self.optimizer.tell(trial, value)
        elif self.rejected == "fails":
            self.optimizer.fail(trial, "too slow")
        else:
            self.optimizer.tell(trial, self.worst)

    def front(self, t: float) -> Tensor:
        """Return the recommended actions."""
        return torch.cat([each.X for each in self.optimizer.front(t=t, num_points=60)])


class BoTorch:
    """A loop of BoTorch's, with or without time as an input."""

    def __init__(self, seed: int, constrained: bool, with_time: bool):
        self.constrained, self.with_time = constrained, with_time
        self.X = torch.empty(0, 2 + with_time, dtype=torch.float64)
        self.Y = torch.empty(0, 2, dtype=torch.float64)
        torch.manual_seed(seed)

    def ask(self, t: float) -> Tensor:
        """Return an action, ``1 x 2``."""
        model, X = self._fit(), self._rows(self.X[:, :2], t)
        if self.constrained:
            scale = self.Y.std(dim=0)
            acq_function: Any = qLogNoisyExpectedImprovement(
                model,
                X,
                objective=LinearMCObjective(torch.tensor([1.0, 0.0], dtype=torch.float64)),
                constraints=[lambda Z: (Z[..., 1] - LIMIT) / scale[1]],
            )
        else:
            acq_function = qLogNoisyExpectedHypervolumeImprovement(
                model, torch.zeros(2, dtype=torch.float64), X, prune_baseline=True
            )
        bounds = torch.cat([SQUARE, torch.tensor([[t], [t]])], dim=-1) if self.with_time else SQUARE
        found, _ = optimize_acqf(
            acq_function,
            bounds,
            q=1,
            num_restarts=4,
            raw_samples=128,
            fixed_features={2: t} if self.with_time else None,
        )
        return found[:, :2]

    def tell(self, X: Tensor, t: float, Y: Tensor) -> None:
        """Take in the outcomes of an action."""
        self.X = torch.cat([self.X, self._rows(X, t)])
        self.Y = torch.cat([self.Y, Y.unsqueeze(0)])

    def front(self, t: float) -> Tensor:
        """Return the recommended actions."""
        model = self._fit()
        with torch.no_grad():
            means = model.posterior(self._rows(GRID, t)).mean
        return GRID[is_non_dominated(means)]

    def _rows(self, X: Tensor, t: float) -> Tensor:
        time = torch.full((len(X), 1), t, dtype=torch.float64)
        return torch.cat([X, time], dim=-1) if self.with_time else X

    def _fit(self) -> ModelListGP:
        X, scale = self.X, Normalize(3) if self.with_time else None
        model = ModelListGP(
            *(SingleTaskGP(X, self.Y[:, [i]], input_transform=scale) for i in range(2))
        )
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        return model


class Simple:
    """Random actions, or always the best of the first ten that was allowed."""

    def __init__(self, seed: int, fixed: bool):
        self.fixed, self.generator = fixed, Generator().manual_seed(seed)
        self.X, self.Y = torch.empty(0, 2, dtype=torch.float64), torch.empty(0, 2)

    def ask(self, t: float) -> Tensor:
        """Return an action, ``1 x 2``."""
        if not self.fixed:
            return torch.rand(1, 2, dtype=torch.float64, generator=self.generator)
        value, latency = self.Y[:NUM_INITIAL].unbind(-1)
        allowed = torch.where(latency <= LIMIT, value, -torch.inf)
        best = allowed.argmax() if allowed.isfinite().any() else latency.argmin()
        return self.X[[int(best)]]

    def tell(self, X: Tensor, t: float, Y: Tensor) -> None:
        """Take in the outcomes of an action."""
        self.X, self.Y = torch.cat([self.X, X]), torch.cat([self.Y, Y.unsqueeze(0)])

    def front(self, t: float) -> Tensor:
        """Return the actions whose outcomes no other's dominate, whenever they were told."""
        return self.X[is_non_dominated(self.Y)]


Method = Callable[[int], Loop]
LIMITS = {"latency": (None, LIMIT)}
CONSTRAINED: dict[str, Method] = {
    "constraints, the default": lambda seed: Ours(
        seed, objectives=["throughput"], constraints=LIMITS
    ),
    "constraints, BoTorch's qLogNEI at the present": lambda seed: Ours(
        seed,
        objectives=["throughput"],
        constraints=LIMITS,
        acquisition=qLogNoisyExpectedImprovement,
    ),
    "no constraints, slow actions fail": lambda seed: Ours(seed, rejected="fails"),
    "no constraints, slow ones told as the worst": lambda seed: Ours(seed, rejected="worst"),
    "BoTorch's qLogNEI, time an input": partial(BoTorch, constrained=True, with_time=True),
    "the best allowed of the first ten, always": partial(Simple, fixed=True),
    "random": partial(Simple, fixed=False),
}
PEAKS = {"first": 0.0, "second": 0.0}
SEVERAL: dict[str, Method] = {
    "two objectives, the default": lambda seed: Ours(seed, objectives=PEAKS),
    "BoTorch's qLogNEHVI, time an input": partial(BoTorch, constrained=False, with_time=True),
    "BoTorch's qLogNEHVI without time": partial(BoTorch, constrained=False, with_time=False),
    "random, the best outcomes so far": partial(Simple, fixed=False),
}


def play(make: Method, problem: Service | TwoPeaks, seed: int) -> tuple[float, ...]:
    """Return mean regret and share of feasible rounds; or the mean share of hypervolume."""
    loop, noise = make(seed), Generator().manual_seed(1000 + seed)
    starts = SobolEngine(2, scramble=True, seed=seed).draw(NUM_INITIAL, dtype=torch.float64)
    figures = []
    for number in range(1, problem.horizon + 1):
        t = float(number)
        X = starts[[number - 1]] if number <= NUM_INITIAL else loop.ask(t)
        drawn = torch.randn(2, dtype=torch.float64, generator=noise)
        loop.tell(X, t, problem.values(X, t)[0] + problem.noise * drawn)
        if number < problem.first:
            continue
        if isinstance(problem, Service):
            figures.append(problem.regret(X, t))
        elif number % 5 == 0:
            figures.append((problem.share(loop.front(t), t),))
    return tuple(torch.tensor(figures, dtype=torch.float64).mean(dim=0).tolist())


def main() -> None:
    """Print the figures of each method, and the differences to the first, paired."""
    options = parser(__doc__, seeds=10)
    options.add_argument("problem", choices=["constraint", "objectives"])
    chosen = options.parse_args()
    torch.set_num_threads(1)
    is_constraint = chosen.problem == "constraint"
    methods, problem = (CONSTRAINED, Service) if is_constraint else (SEVERAL, TwoPeaks)
    found = {
        name: [play(make, problem(seed), seed) for seed in range(chosen.seeds)]
        for name, make in track(methods.items(), description=chosen.problem)
    }
    by_seed = {name: [figures[0] for figures in runs] for name, runs in found.items()}
    columns = dict(COMPARED)
    if is_constraint:
        feasible = {name: mean_error([f[1] for f in runs])[0] for name, runs in found.items()}
        records = compared(by_seed, feasible=feasible)
        columns["feasible"] = "{feasible:.1%}"
        title = f"rounds {Service.first} to {Service.horizon}, a latency that drifts"
    else:
        records = compared(by_seed)
        columns["hypervolume"] = columns.pop("mean regret")
        title = f"rounds {TwoPeaks.first} to {TwoPeaks.horizon}, two objectives that drift"
    show(f"{title}, {chosen.seeds} seeds", columns, records, chosen.json)


if __name__ == "__main__":
    main()
