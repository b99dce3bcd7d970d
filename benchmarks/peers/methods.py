"""The methods that are compared, each with ``ask(t)`` and ``tell(X, t, Y)``.

Each is built from the bounds of the actions and a seed, and is told the common initial points
before it is asked. What a peer recommends in its own documentation is what it gets here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import pandas as pd
import torch
from botorch_loop import PlainBoTorch, log_ei, log_noisy_ei
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.kernels import TemporalDecayKernel
from tvbo.optimizers import GPOptimizer
from tvbo.trial import Trial

INITIAL = 15
"""Number of initial points that every method of a seed is told."""


class Method(Protocol):
    """What is compared."""

    @property
    def model_size(self) -> int:
        """Number of observations held."""

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add the outcome of an action at the time at which it was observed."""


class Recipe:
    """A recipe of tvbo, without a start of its own."""

    def __init__(self, make: Callable[..., GPOptimizer], bounds: Tensor, seed: int):
        self.optimizer = make(bounds=bounds, initial=0, generator=Generator().manual_seed(seed))
        self.asked: Trial | None = None

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return self.optimizer.model_size

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        self.asked = self.optimizer.ask(t=t)
        return self.asked.X

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome; one observed later than it was asked for enters with its own time."""
        trial, self.asked = self.asked, None
        if trial is not None and trial.t != t:
            self.optimizer.expire(trial, "observed later")
            trial = None
        self.optimizer.tell(self.optimizer.attach(X, t) if trial is None else trial, Y)


@contextmanager
def draws(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generator for a while."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def double() -> Iterator[None]:
    """Make float64 PyTorch's default for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class WDBO:
    """W-DBO (Bardou et al., 2024), with the options of its README.

    Its model mixes single with double precision, which raises unless PyTorch's default is double.

    Args:
        bounds: Lower and upper bounds of the actions, ``2 x d``.
        seed: Seed of its draws.
        unit: Our unit of time in its own: the run of its README lasts four.
    """

    def __init__(self, bounds: Tensor, seed: int, unit: float = 4 / 80):
        from wdbo_algo.optimizer import WDBOOptimizer

        self.bounds, self.seed, self.unit = bounds, seed, unit
        self.num_told = 0
        self.optimizer = WDBOOptimizer(
            bounds.T.numpy(),
            MaternKernel,
            MaternKernel,
            spatial_kernel_args=[2.5],
            temporal_kernel_args=[2.5],
            n_initial_observations=INITIAL,
        )

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return int(self.optimizer.dataset_size())

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        with draws(1_000 * self.seed + self.num_told), double():
            x = self.optimizer.next_query(t * self.unit)
        # It works in single precision, in which a bound may be off by rounding.
        return torch.as_tensor(x, dtype=torch.float64).unsqueeze(0).clamp(*self.bounds)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        self.num_told += 1
        with double():
            self.optimizer.tell(X.squeeze(0).numpy(), t * self.unit, Y)
            self.optimizer.clean(t * self.unit)


class FrozenClock:
    """What Xopt takes for the module ``time``: the present time is given."""

    now = 0.0

    def time(self) -> float:
        """Return the present time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds


class Xopt:
    """Xopt's time-dependent generator with its defaults, UCB with β = 2.

    It reads the clock of the machine to predict at the time of its answer; here the clock stands
    at the present time.
    """

    def __init__(self, bounds: Tensor, seed: int):
        from gest_api.vocs import VOCS
        from xopt.generators.bayesian import time_dependent
        from xopt.generators.bayesian.upper_confidence_bound import (
            TDUpperConfidenceBoundGenerator,
        )

        self.bounds, self.seed, self.num_told = bounds, seed, 0
        self.names = [f"x{i}" for i in range(bounds.shape[-1])]
        self.clock = time_dependent.time = FrozenClock()
        self.generator = TDUpperConfidenceBoundGenerator(
            vocs=VOCS(
                variables=dict(zip(self.names, bounds.T.tolist(), strict=True)),
                objectives={"y": "MAXIMIZE"},
            ),
            added_time=1e-6,
        )

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return self.num_told

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        self.clock.now = t
        with draws(1_000 * self.seed + self.num_told):
            (chosen,) = self.generator.generate(1)
        X = torch.tensor([[chosen[name] for name in self.names]], dtype=torch.float64)
        return X.clamp(*self.bounds)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        self.num_told += 1
        row = dict(zip(self.names, X.squeeze(0).tolist(), strict=True))
        self.generator.add_data(pd.DataFrame([{**row, "time": t, "y": Y}]))


class RandomSearch:
    """Actions uniformly at random."""

    model_size = 0

    def __init__(self, bounds: Tensor, seed: int):
        self.bounds = bounds
        self.generator = Generator().manual_seed(seed)

    def ask(self, t: float) -> Tensor:
        """Return an action ``1 x d``."""
        low, high = self.bounds
        return low + (high - low) * torch.rand(
            1, len(low), dtype=torch.float64, generator=self.generator
        )

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Learn nothing."""


class Optuna:
    """A sampler of Optuna, to which time is unknown."""

    def __init__(self, bounds: Tensor, seed: int, sampler: str):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.bounds, self.model_size, self.asked = bounds, 0, None
        own = getattr(optuna.samplers, sampler)(seed=seed)
        self.study = optuna.create_study(direction="maximize", sampler=own)
        self.space = {
            f"x{i}": optuna.distributions.FloatDistribution(low, high)
            for i, (low, high) in enumerate(bounds.T.tolist())
        }

    def ask(self, t: float) -> Tensor:
        """Return the action for the present time, ``1 x d``."""
        self.asked = self.study.ask(self.space)
        chosen = [self.asked.params[name] for name in self.space]
        return torch.tensor([chosen], dtype=torch.float64).clamp(*self.bounds)

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome."""
        from optuna.trial import create_trial

        trial, self.asked = self.asked, None
        self.model_size += 1
        if trial is not None:
            self.study.tell(trial, Y)
            return
        params = dict(zip(self.space, X.squeeze(0).tolist(), strict=True))
        self.study.add_trial(create_trial(params=params, distributions=self.space, value=Y))


def pb2(**options: object) -> GPOptimizer:
    """Return PB2's rule as in Ray: one RBF length-scale, ε by likelihood, its own β."""
    return recipes.tv_gp_ucb(
        covar_module=ScaleKernel(RBFKernel()).double(),
        temporal_kernel=TemporalDecayKernel().double(),
        beta=lambda round_number: 0.2 + max(math.log(0.4 * round_number), 0.0),
        **options,
    )


class EventTriggered(Recipe):
    """ET-GP-UCB (Brunzema et al., 2022): GP-UCB that is reset when an outcome is unlikely.

    With π_t = π² t² / 6 and δ = 0.1 all outcomes but the newest are dropped where that is further
    from its posterior mean than √(2 log(2 π_t / δ)) (σ(x) + σ_n), t counted since the last reset.
    """

    def __init__(self, bounds: Tensor, seed: int):
        super().__init__(recipes.gp_ucb, bounds, seed)
        self.bounds, self.seed, self.age = bounds, seed, 0

    def tell(self, X: Tensor, t: float, Y: float) -> None:
        """Add an outcome, perhaps to a model without others."""
        self.age += 1
        if self.asked is not None:
            (row,) = self.optimizer.predict(X, t).to_dict("records")
            noise = self.optimizer.outcome_models[0].outcome_noise()
            bound = math.sqrt(2 * math.log(2 * math.pi**2 * self.age**2 / 6 / 0.1))
            spread = row["standard_deviation"] + math.sqrt(noise or 0.0)
            if abs(Y - row["mean"]) > bound * spread:
                super().__init__(recipes.gp_ucb, self.bounds, self.seed)
                self.age = 1
        super().tell(X, t, Y)


OURS = "ours"

METHODS: dict[str, Callable[[Tensor, int], Method]] = {
    OURS: partial(Recipe, recipes.tv_gp_ucb),
    "wdbo": WDBO,
    "xopt": Xopt,
    "botorch-rbf": PlainBoTorch,
    "botorch-nei": partial(PlainBoTorch, rule=log_noisy_ei),
    "botorch-ei": partial(PlainBoTorch, rule=log_ei),
    "tpe": partial(Optuna, sampler="TPESampler"),
    "optuna-gp": partial(Optuna, sampler="GPSampler"),
    "pb2": partial(Recipe, pb2),
    "et-gp-ucb": EventTriggered,
    "random": RandomSearch,
}

LABELS = {
    OURS: "tv_gp_ucb, nothing given",
    "wdbo": "W-DBO",
    "xopt": "Xopt TD-UCB",
    "botorch-rbf": "BoTorch [x, t], UCB",
    "botorch-nei": "BoTorch [x, t], qLogNEI",
    "botorch-ei": "BoTorch [x, t], LogEI",
    "tpe": "Optuna TPE",
    "optuna-gp": "Optuna GPSampler",
    "pb2": "PB2's rule",
    "et-gp-ucb": "ET-GP-UCB",
    "random": "random",
}
