"""A simulated service: all mechanisms together, and each of them taken away.

300 rounds of ``SimulatedService``: three parameters, one of them a category; two contexts; a season
of a day and drift; outcomes 5 to 50 rounds late, of which one in ten never comes; a latency that
must stay below a limit; a price per evaluation. In each round the service runs with the action
that was asked for; that of a trial that is skipped is not measured and costs nothing. A round whose
latency is above the limit counts as the worst feasible action.

Hyperparameters are given, near what fits to two logs of 300 random actions gave (seeds 100 and
101), for each model on its own where they differ. The budget of the compression and beta
were chosen on seeds 101 and 102. Seeds 0 to 9 were played once, but the three methods without drift
twice: at first they had the lengthscales of the others, not those of their own fits.

    OMP_NUM_THREADS=1 python benchmarks/simulated_service.py \
        --json docs/results/simulated_service.json
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from shared import compared, in_workers, mean_error, parser, show
from torch import Generator, Tensor

from experiments.problems.simulated_service import SimulatedService
from tvbo import recipes
from tvbo.acquisition import Goals
from tvbo.kernels import ConstantTemporalKernel, SeasonalKernel, TemporalDecayKernel
from tvbo.optimizers import GPOptimizer, IgnorePending, OutcomeModel
from tvbo.optimizers.pending import Hallucinate, Pending
from tvbo.retention import EntropyThreshold

HORIZON = 300
LONGEST = 50.0
"""Rounds after which an outcome counts as lost."""

BUDGET = 0.6
"""Nats above which an outcome is worth its price."""

BETA = 1.0
"""Square of the multiplier on the posterior standard deviation."""


@dataclass(frozen=True)
class Model:
    """Hyperparameters of the model of one outcome, in its units.

    Args:
        lengthscales: Of batch, cache, rule, load and temperature.
        variance: Prior variance of the part that drifts, or that stays without drift.
        mean: Prior mean.
        noise: Variance of the noise.
        rate: ε per round.
        season: Prior variance of the season; 0 is none.
    """

    lengthscales: tuple[float, float, float, float, float]
    variance: float
    mean: float
    noise: float
    rate: float
    season: float = 0.0

    def options(self, has_contexts: bool) -> dict[str, Any]:
        """Return the options of a recipe."""
        batch, cache, rule, *contexts = self.lengthscales
        scales = [batch, cache, rule, rule, rule, *(contexts if has_contexts else [])]
        parts: list[tuple[Kernel, float]] = [(_decay(self.rate), self.variance)]
        if self.season:
            parts.append((SeasonalKernel(24.0, num_harmonics=1).double(), self.season))
        mean = ConstantMean().double()
        mean.constant = self.mean
        return {
            "temporal_kernel": [kernel for kernel, _ in parts],
            "covar_module": [_over_columns(scales, variance) for _, variance in parts],
            "mean_module": mean.requires_grad_(False),
            "noise_variance": self.noise,
        }


def _decay(rate: float) -> Kernel:
    kernel: Kernel
    if rate == 0:
        return ConstantTemporalKernel().double()
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    return kernel.requires_grad_(False)


def _over_columns(scales: list[float], variance: float) -> Kernel:
    kernel = ScaleKernel(RBFKernel(ard_num_dims=len(scales))).double()
    kernel.base_kernel.lengthscale = torch.tensor(scales)
    kernel.outputscale = variance
    return kernel.requires_grad_(False)


PEAK = (3.3, 2.8, 3.0, 4.2, 25.0)
SLOPE = (16.0, 24.0, 6.5, 11.0, 125.0)
REVENUE = Model(PEAK, variance=650.0, mean=65.0, noise=16.0, rate=0.02, season=100.0)
LATENCY = Model(SLOPE, variance=710.0, mean=85.0, noise=16.0, rate=0.002)


@dataclass(frozen=True)
class Method:
    """The loop with all mechanisms, or without some.

    Args:
        revenue: Model of the revenue.
        latency: Model of the latency; None: there is no constraint.
        has_contexts: Whether the models see the contexts.
        pending: Rule for pending trials.
        budget: Nats above which an outcome is worth its price; 0 evaluates all.
        expires: Whether trials end whose outcome was lost.
    """

    revenue: Model = REVENUE
    latency: Model | None = LATENCY
    has_contexts: bool = True
    pending: Pending = field(default_factory=Hallucinate)
    budget: float = BUDGET
    expires: bool = True

    def optimizer(self, service: SimulatedService, seed: int) -> GPOptimizer:
        """Return the optimizer: that of the revenue, or of revenue and latency."""
        models = {"revenue": self.revenue, "latency": self.latency}
        recipe: Callable[..., GPOptimizer] = (
            recipes.tv_cgp_ucb if self.has_contexts else recipes.tv_gp_ucb
        )
        made = {
            name: recipe(
                bounds=service.parameters,
                **({"context_bounds": service.context_parameters} if self.has_contexts else {}),
                forgetting_rate=None,
                retention=EntropyThreshold(self.budget),
                pending=self.pending,
                beta=BETA,
                generator=Generator().manual_seed(seed),
                **model.options(self.has_contexts),
            )
            for name, model in models.items()
            if model is not None
        }
        if self.latency is None:
            return made["revenue"]
        goals = Goals.of(["revenue"], {"latency": (None, service.limit)})
        first, second = made.values()
        (model,) = second.outcome_models
        latency = OutcomeModel(model.fitter, model.retention, False, model.choices)
        return GPOptimizer(
            first.search_space,
            [*first.outcome_models, latency],
            first.acquisition,
            generator=first.generator,
            contexts=first.contexts,
            pending=first.pending,
            initial=first.initial,
            goals=goals,
        )


FULL = Method()
STILL = Model((2.5, 2.7, 4.0, 2.0, 27.0), 340.0, 67.0, noise=200.0, rate=0.0, season=150.0)
STILL_LATENCY = Model((20.0, 33.0, 8.0, 8.0, 44.0), 2900.0, 75.0, noise=97.0, rate=0.0)
POOLED = Model((40.0, 55.0, 14.0, 1.0, 1.0), 7000.0, 85.0, noise=22.0, rate=0.001)
NO_DRIFT = replace(FULL, revenue=STILL, latency=STILL_LATENCY)
METHODS: dict[str, Method] = {
    "all mechanisms": FULL,
    "without drift": NO_DRIFT,
    "without drift or compression": replace(NO_DRIFT, budget=0.0),
    "without the season": replace(FULL, revenue=replace(REVENUE, rate=0.04, season=0.0)),
    "without contexts": replace(
        FULL, revenue=replace(REVENUE, rate=0.036), latency=POOLED, has_contexts=False
    ),
    "pending trials ignored": replace(FULL, pending=IgnorePending()),
    "without compression": replace(FULL, budget=0.0),
    "without the constraint": replace(FULL, latency=None),
    "lost outcomes never expire": replace(FULL, expires=False),
    "none of them: GP-UCB": Method(
        revenue=Model((4.8, 4.4, 6.0, 1.0, 1.0), 800.0, 55.0, noise=480.0, rate=0.0),
        latency=None,
        has_contexts=False,
        pending=IgnorePending(),
        budget=0.0,
        expires=False,
    ),
}
FIRST = 50
"""Rounds of random actions from which the best fixed action is taken."""

SIMPLE = ("random", "best of 50 random actions, fixed")


def play(job: tuple[str, int], horizon: int = HORIZON) -> dict[str, float]:
    """Play a method on the service of a seed; return the figures of all rounds."""
    name, seed = job
    service = SimulatedService(horizon, generator=Generator().manual_seed(seed))
    began = time.process_time()
    if name in SIMPLE:
        actions, count = fixed(service, seed) if name == SIMPLE[1] else random(service, seed)
        rounds = [service.regret(X, t) for t, X in enumerate(actions, start=1)]
    else:
        rounds, count = tuned(METHODS[name], service, seed)
    regret, feasible = torch.tensor(rounds, dtype=torch.float64).mean(dim=0).tolist()
    cost = regret + service.price * count / horizon
    seconds = time.process_time() - began
    return {"regret": regret, "feasible": feasible, "evaluations": count, "cost": cost} | {
        "seconds": seconds
    }


def tuned(
    method: Method, service: SimulatedService, seed: int
) -> tuple[list[tuple[float, bool]], int]:
    """Return regret and feasibility of each round, and the number of evaluations."""
    optimizer = method.optimizer(service, seed)
    names = ("revenue", "latency") if method.latency else ("revenue",)
    arriving = defaultdict(list)
    rounds, count = [], 0
    for t in map(float, range(1, service.horizon + 1)):
        for trial, outcome in arriving.pop(t, []):
            optimizer.tell(trial, outcome)
        if method.expires:
            optimizer.expire_overdue(t, LONGEST)
        trial = optimizer.ask(t, service.context(t) if method.has_contexts else None)
        rounds.append(service.regret(trial.X, t))
        if trial.skipped:
            continue
        count += 1
        measured = service.measure(trial.X, t)
        outcome = {name: measured[name] for name in names}
        if math.isfinite(service.delay(t)):
            told = outcome if len(names) > 1 else outcome["revenue"]
            arriving[t + service.delay(t)].append((trial, told))
    return rounds, count


def random(service: SimulatedService, seed: int) -> tuple[Tensor, int]:
    """Return random actions, ``horizon x 5``; nothing is measured."""
    generator = Generator().manual_seed(seed)
    drawn = torch.randint(len(service.choices), (service.horizon,), generator=generator)
    return service.choices[drawn], 0


def fixed(service: SimulatedService, seed: int) -> tuple[Tensor, int]:
    """Return random actions at first, then the best whose measured latency kept the limit."""
    actions, _ = random(service, seed)
    best, largest = actions[0], -math.inf
    for t in range(1, FIRST + 1):
        outcome = service.measure(actions[t - 1], t)
        arrived = t + service.delay(t) <= FIRST + LONGEST
        if arrived and outcome["latency"] <= service.limit and outcome["revenue"] > largest:
            best, largest = actions[t - 1], outcome["revenue"]
    # Chosen when the last of these outcomes has come.
    actions[FIRST + int(LONGEST) :] = best
    return actions, FIRST


def main() -> None:
    """Print a table."""
    options = parser(__doc__, seeds=10, first_seed=0, workers=1)
    options.add_argument("--methods", nargs="*", default=[*METHODS, *SIMPLE])
    chosen = options.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    jobs = [(name, seed) for seed in seeds for name in chosen.methods]
    found = dict(zip(jobs, in_workers(play, jobs, chosen.workers), strict=True))
    runs = {name: [found[name, seed] for seed in seeds] for name in chosen.methods}
    regret, cost = (
        compared({name: [run[key] for run in of_name] for name, of_name in runs.items()})
        for key in ("regret", "cost")
    )
    records = []
    for of_regret, of_cost in zip(regret, cost, strict=True):
        of_name = runs[of_regret["method"]]
        means = {key: mean_error([run[key] for run in of_name])[0] for key in of_name[0]}
        records.append({**means, "regret": of_regret, "cost": of_cost, "runs": of_name})
    columns = {
        "method": "{regret[method]}",
        "regret": "{regret[regret]:.1f} ± {regret[error]:.1f}",
        "more, paired": "{regret[more]:.1f} ± {regret[more_error]:.1f}",
        "regret + price": "{cost[regret]:.1f} ± {cost[error]:.1f}",
        "more, paired, with price": "{cost[more]:.1f} ± {cost[more_error]:.1f}",
        "feasible": "{feasible:.1%}",
        "evaluations": "{evaluations:.0f}",
    }
    title = f"{HORIZON} rounds of a simulated service, {chosen.seeds} seeds"
    show(title, columns, records, chosen.json)


if __name__ == "__main__":
    main()
