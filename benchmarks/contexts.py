"""Contexts with nothing given, on problems that drift; and problems that stand still.

A draw of a GP over two actions, context and time, in 60 rounds with noise of 0.15; scales 0.3 over
actions, 0.4 over contexts, 60 in time, rough for every other seed. What is observed depends on
action and context together (product, drifting), one after the other (additive), on the action alone
(useless), on the first of four contexts, or on a category of six. In *drifting* the context is a
random walk, elsewhere it is drawn again in each round. The problems that stand still are Branin,
Hartmann-6 and Levy-10, in units of their standard deviations, with noise of 0.1.

`tv_gp_ucb` does not see the context. BoTorch's loops fit a `SingleTaskGP` to [action, context,
time], or to the action alone where all stands still, and fix context and time in each ask; what
they improve on is at the present time, and in this context. Xopt's expected improvement has them
as variables that are fixed (`pip install 'botorch-tvbo[peers]'`). Runs are saved one by one: those
in the file are not run again, and what is shown are those of the seeds asked for.

    python benchmarks/contexts.py --json docs/results/contexts.json
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann, Levy
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray
from shared import COMPARED, compared, in_workers, parser, show
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from tvbo import recipes

HORIZON, FIRST, LEVELS = 60, 16, "abcdef"
DRIFTING = ("product", "additive", "useless", "one of four", "category", "drifting")
STATIC = {"Branin": Branin(), "Hartmann-6": Hartmann(6), "Levy-10": Levy(10)}
Array = NDArray[np.float64]


def unit_points(count: int, dim: int, seed: int) -> Tensor:
    """Return quasirandom points of the unit cube."""
    return SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)


class Field:
    """A draw of a GP over some columns and time, by 400 random features."""

    def __init__(self, rng: np.random.Generator, scales: list[float], rough: bool):
        waves = rng.standard_normal((400, len(scales))) / np.array(scales)
        in_time = rng.standard_cauchy(400) if rough else rng.standard_normal(400)
        self.waves = np.column_stack([waves, in_time / 60])
        self.phases = rng.uniform(0, 2 * np.pi, 400)
        self.amplitudes = rng.standard_normal(400) * math.sqrt(2 / 400)

    def __call__(self, t: float, *columns: Array) -> Array:
        """Return the values ``n`` at a time."""
        rows = np.column_stack([*columns, np.full(len(columns[0]), t)])
        return np.cos(rows @ self.waves.T + self.phases) @ self.amplitudes


class Drifting:
    """A problem that drifts, with the context of each round."""

    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    deviation, initial = 0.15, 10

    def __init__(self, name: str, seed: int):
        key = sum(map(ord, name))
        rng = np.random.default_rng([seed, key])
        self.noise = np.random.default_rng([seed, 1, key])
        field = partial(Field, rng, rough=seed % 2 == 1)
        alone = field([0.25, 0.25])
        if name == "useless":
            self.value = lambda x, z, t: alone(t, x)
        elif name == "additive":
            level = field([0.3])
            self.value = lambda x, z, t: alone(t, x) + 1.5 * level(t, z)
        elif name == "category":
            fields = [field([0.25, 0.25]) for _ in LEVELS]
            self.value = lambda x, z, t: 0.6 * alone(t, x) + 0.8 * fields[int(z[0, 0])](t, x)
        else:
            joint = field([0.3, 0.3, 0.4])
            self.value = lambda x, z, t: joint(t, x, z[:, :1])
        num_contexts = 4 if name == "one of four" else 1
        self.contexts = rng.random((HORIZON + 1, 4))[:, :num_contexts]
        self.space: Any = [(0.0, 1.0)] * num_contexts
        if name == "category":
            self.contexts, self.space = np.floor(6 * self.contexts), {"level": list(LEVELS)}
        elif name == "drifting":
            walk = np.cumsum(rng.normal(0, 0.04, HORIZON + 1)) + rng.random()
            self.contexts = np.abs(walk % 2 - 1)[:, None]
        self.grid = unit_points(2048, 2, seed=5).numpy()

    def features(self, t: int) -> list[float]:
        """Return what BoTorch's models see beside the action: context, one-hot, and time."""
        [*z] = self.contexts[t]
        return [*(np.eye(6)[int(z[0])] if isinstance(self.space, dict) else z), float(t)]

    def context(self, t: int) -> Any:
        """Return the context as our loop takes it."""
        z = self.contexts[t]
        return {"level": LEVELS[int(z[0])]} if isinstance(self.space, dict) else z

    def play(self, X: Tensor, t: int) -> tuple[float, float]:
        """Return regret and outcome of an action ``1 x d``."""
        x = np.concatenate([X.numpy(), self.grid])
        values = self.value(x, np.tile(self.contexts[t], (len(x), 1)), t)
        return values.max() - values[0], values[0] + self.deviation * self.noise.standard_normal()


class Static:
    """A test function that stands still, in standard deviations."""

    def __init__(self, name: str, seed: int):
        self.function = STATIC[name].double()
        self.bounds = self.function.bounds
        dim = self.bounds.shape[-1]
        self.noise, self.initial = np.random.default_rng([seed, dim]), 2 * (dim + 1)
        sample = self.function(torch.lerp(*self.bounds, unit_points(2000, dim, seed=1)))
        self.scale = sample.std().item()

    def features(self, t: int) -> list[float]:
        """Return nothing."""
        return []

    def play(self, X: Tensor, t: int) -> tuple[float, float]:
        """Return regret and outcome of an action ``1 x d``."""
        regret = (self.function(X).item() - self.function.optimal_value) / self.scale
        return regret, -regret + 0.1 * self.noise.standard_normal()


def ours(recipe: str, problem: Any, seed: int) -> list[float]:
    """Return the regret of each round of a recipe with nothing given."""
    sees = {"context_bounds": problem.space} if recipe == "tv_cgp_ucb" else {}
    generator = Generator().manual_seed(seed)
    optimizer = getattr(recipes, recipe)(bounds=problem.bounds, generator=generator, **sees)
    regrets = []
    for t in range(1, HORIZON + 1):
        trial = optimizer.ask(t, problem.context(t) if sees else None)
        regret, outcome = problem.play(trial.X, t)
        optimizer.tell(trial, outcome)
        regrets.append(regret)
    return regrets


def botorch(rule: str, problem: Any, seed: int) -> list[float]:
    """Return the regret of each round of BoTorch's loop."""
    d, low, high = problem.bounds.shape[-1], *problem.bounds
    X = torch.lerp(low, high, unit_points(problem.initial, d, seed))
    rows, Y, regrets = torch.empty(0), torch.empty(0, 1, dtype=torch.float64), []
    for n in range(HORIZON):
        fixed = torch.tensor(problem.features(n + 1), dtype=torch.float64)
        x = X[n : n + 1]
        if n >= problem.initial:
            torch.manual_seed(1000 * seed + n)
            model = SingleTaskGP(rows, Y, input_transform=Normalize(rows.shape[-1]))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            present = torch.cat([rows[:, :d], fixed.expand(n, -1)], dim=-1)
            if rule == "LogEI":
                with torch.no_grad():
                    best = model.posterior(present.unsqueeze(1)).mean.max()
                acquisition: Any = LogExpectedImprovement(model, best)
            elif rule == "UCB":
                acquisition = UpperConfidenceBound(model, beta=0.8 * math.log(4 * (n + 1)))
            else:
                acquisition = qLogNoisyExpectedImprovement(model, present, prune_baseline=True)
            x = optimize_acqf(
                acquisition,
                bounds=torch.cat([problem.bounds, fixed.expand(2, -1)], dim=-1),
                q=1,
                num_restarts=4,
                raw_samples=64,
                fixed_features=dict(enumerate(fixed.tolist(), d)) or None,
            )[0][:, :d].clamp(low, high)
        regret, outcome = problem.play(x, n + 1)
        rows = torch.cat([rows, torch.cat([x, fixed[None]], dim=-1)])
        Y = torch.cat([Y, torch.tensor([[outcome]], dtype=torch.float64)])
        regrets.append(regret)
    return regrets


def xopt(problem: Any, seed: int) -> list[float]:
    """Return the regret of each round of Xopt's expected improvement, context and time fixed."""
    from gest_api.vocs import VOCS
    from xopt.generators.bayesian import ExpectedImprovementGenerator

    actions = [f"x{i}" for i in range(2)]
    seen = [f"z{i}" for i in range(len(problem.features(1)))]
    space: dict[str, list[float]] = {name: [0.0, 1.0] for name in (*actions, *seen)}
    vocs = VOCS(variables=space | {seen[-1]: [0.0, HORIZON]}, objectives={"y": "MAXIMIZE"})
    generator, regrets = ExpectedImprovementGenerator(vocs=vocs), []
    for n, start in enumerate(unit_points(HORIZON, 2, seed)):
        fixed, X = dict(zip(seen, problem.features(n + 1), strict=True)), start[None]
        if n >= problem.initial:
            torch.manual_seed(1000 * seed + n)
            generator.fixed_features = fixed
            (chosen,) = generator.generate(1)
            X = torch.tensor([[chosen[name] for name in actions]], dtype=torch.float64).clamp(0, 1)
        regret, outcome = problem.play(X, n + 1)
        row = dict(zip(actions, X[0].tolist(), strict=True))
        generator.add_data(pd.DataFrame([{**row, **fixed, "y": outcome}]))
        regrets.append(regret)
    return regrets


OURS = ("tv_cgp_ucb", "gp_ucb", "tv_gp_ucb")
METHODS: dict[str, Callable[[Any, int], list[float]]] = {
    **{name: partial(ours, name) for name in OURS},
    **{name: partial(botorch, name) for name in ("LogEI", "UCB", "qLogNEI")},
    "Xopt": xopt,
}
COMPARISONS = {name: [m for m in METHODS if m != "gp_ucb"] for name in DRIFTING}
COMPARISONS |= {name: ["gp_ucb", "tv_gp_ucb", "LogEI"] for name in STATIC}


def play(job: tuple[str, str, int]) -> tuple[float, float]:
    """Return the mean regret of rounds 16 to 60, and the CPU seconds of all."""
    name, method, seed = job
    warnings.simplefilter("ignore")
    problem, began = (Static if name in STATIC else Drifting)(name, seed), time.process_time()
    regret = METHODS[method](problem, seed)
    return sum(regret[FIRST - 1 :]) / len(regret[FIRST - 1 :]), time.process_time() - began


def main() -> None:
    """Run what is missing, and print a table of each problem."""
    options = parser(__doc__, seeds=10, first_seed=101, workers=1)
    options.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    options.add_argument("--problems", nargs="*", choices=COMPARISONS, default=list(COMPARISONS))
    given = options.parse_args()
    path, found = given.json, {}
    if path is not None and path.exists():
        found = json.loads(path.read_text())
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for seed in seeds:
        jobs = [(p, m, seed) for p in given.problems for m in COMPARISONS[p] if m in given.methods]
        jobs = [job for job in jobs if "/".join(map(str, job)) not in found]
        for job, result in zip(jobs, in_workers(play, jobs, given.workers), strict=True):
            found["/".join(map(str, job))] = result
        if path is not None:
            path.write_text(json.dumps(found, indent=2) + "\n")
    for problem in given.problems:
        records = []
        for method in COMPARISONS[problem]:
            pair = COMPARISONS[problem][0], method
            keys = [[f"{problem}/{each}/{seed}" for each in pair] for seed in seeds]
            runs = np.array(
                [[found[key] for key in both] for both in keys if found.keys() >= {*both}]
            )
            if len(runs) > 0:
                regret = {"first": runs[:, 0, 0].tolist(), method: runs[:, 1, 0].tolist()}
                seconds = dict.fromkeys(regret, runs[:, 1, 1].mean())
                records.append(compared(regret, seconds=seconds)[-1] | {"runs": len(runs)})
        columns = COMPARED | {"CPU s a run": "{seconds:.1f}", "runs": "{runs}"}
        show(f"{problem}, rounds {FIRST} to {HORIZON}", columns, records, None)


if __name__ == "__main__":
    main()
