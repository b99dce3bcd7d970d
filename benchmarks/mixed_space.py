"""Floats, a logarithm, an integer and a category together, drifting: tvbo, Optuna and Ax.

A bump over two floats, a rate on a logarithmic scale and an integer from 1 to 16, whose height
depends on a category of four. Its place and the heights move; values are scaled to standard
deviation 1 over actions, the noise has standard deviation 0.22. All methods of a seed are told the
same 15 random actions first. Optuna's samplers know no time; Ax has it as a parameter, which is
fixed at the present in each ask.

    pip install optuna ax-platform
    python benchmarks/mixed_space.py --seeds 10 --json docs/results/mixed_space.json
"""

from __future__ import annotations

import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from ConfigSpace import Float
from shared import COMPARED, compared, in_workers, parser, show
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.spaces import Parameters

HORIZON, INITIAL, NOISE, WIDTH = 80, 15, 0.22, 0.35
SPACE = {
    "x": (0.0, 1.0),
    "y": (-5.0, 5.0),
    "rate": Float("rate", (1e-5, 1e-1), log=True),
    "layers": (1, 16),
    "rule": ["adam", "sgd", "rms", "lion"],
}
Values = dict[str, Any]


class Bump:
    """The objective of a seed.

    Args:
        seed: Seed of how it moves, of the noise and of the first actions.
    """

    def __init__(self, seed: int):
        self.parameters = Parameters.of(SPACE)
        self.generator = Generator().manual_seed(seed)
        self.phases = 2 * math.pi * torch.rand(8, dtype=torch.float64, generator=self.generator)
        self.periods = 80 + 80 * torch.rand(8, dtype=torch.float64, generator=self.generator)
        self.first = [self._draw() for _ in range(INITIAL)]
        sample = [self._raw(self._draw(), 80 * i / 2000) for i in range(2000)]
        self.mean = sum(sample) / len(sample)
        self.scale = math.sqrt(sum((value - self.mean) ** 2 for value in sample) / len(sample))

    def value(self, values: Values, t: float) -> float:
        """Return the value without noise."""
        return (self._raw(values, t) - self.mean) / self.scale

    def best(self, t: float) -> float:
        """Return the largest value: floats can be at the bump, the integer next to it."""
        center, heights = self._state(t)
        miss = min(abs((n - 1) / 15 - center[3]) for n in range(1, 17))
        raw = max(heights) * math.exp(-0.5 * (miss / WIDTH) ** 2)
        return (raw - self.mean) / self.scale

    def observe(self, values: Values, t: float) -> float:
        """Return the value with noise."""
        noise = torch.randn((), dtype=torch.float64, generator=self.generator).item()
        return self.value(values, t) + NOISE * noise

    def _draw(self) -> Values:
        unit = torch.rand(1, 5, dtype=torch.float64, generator=self.generator)
        return self.parameters.decode(self.parameters.from_unit(unit))

    def _state(self, t: float) -> tuple[list[float], list[float]]:
        waves = torch.sin(2 * math.pi * t / self.periods + self.phases)
        return (0.5 + 0.35 * waves[:4]).tolist(), (1 + 0.4 * waves[4:]).tolist()

    def _raw(self, values: Values, t: float) -> float:
        center, heights = self._state(t)
        place = (
            values["x"],
            (values["y"] + 5) / 10,
            math.log10(values["rate"] / 1e-5) / 4,
            (values["layers"] - 1) / 15,
        )
        squares = sum(((z - c) / WIDTH) ** 2 for z, c in zip(place, center, strict=True))
        return heights[SPACE["rule"].index(values["rule"])] * math.exp(-0.5 * squares)


class Method(Protocol):
    """What is compared."""

    def ask(self, t: float) -> Values:
        """Return the next action."""

    def tell(self, values: Values, t: float, outcome: float) -> None:
        """Add an outcome, of the last action or of another."""


class Ours:
    """The default of ``tv_gp_ucb``."""

    def __init__(self, seed: int):
        generator = Generator().manual_seed(seed)
        self.optimizer = recipes.tv_gp_ucb(bounds=SPACE, initial=0, generator=generator)
        self.asked: Any = None

    def ask(self, t: float) -> Values:
        """Return the next action."""
        self.asked = self.optimizer.ask(t)
        return self.asked.parameters

    def tell(self, values: Values, t: float, outcome: float) -> None:
        """Add an outcome."""
        trial, self.asked = self.asked, None
        self.optimizer.tell(trial or self.optimizer.attach(values, t), outcome)


class Optuna:
    """A sampler of Optuna."""

    def __init__(self, sampler: str, options: Values, seed: int):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.module = optuna
        made = getattr(optuna.samplers, sampler)(seed=seed, **options)
        self.study = optuna.create_study(direction="maximize", sampler=made)
        forms = optuna.distributions
        self.space = {
            "x": forms.FloatDistribution(0, 1),
            "y": forms.FloatDistribution(-5, 5),
            "rate": forms.FloatDistribution(1e-5, 1e-1, log=True),
            "layers": forms.IntDistribution(1, 16),
            "rule": forms.CategoricalDistribution(SPACE["rule"]),
        }
        self.asked: Any = None

    def ask(self, t: float) -> Values:
        """Return the next action."""
        self.asked = self.study.ask(self.space)
        return self.asked.params

    def tell(self, values: Values, t: float, outcome: float) -> None:
        """Add an outcome."""
        trial, self.asked = self.asked, None
        if trial is None:
            made = self.module.trial.create_trial(
                params=values, distributions=self.space, value=outcome
            )
            self.study.add_trial(made)
        else:
            self.study.tell(trial, outcome)


class Ax:
    """Ax's default, with time as a parameter that is fixed at the present."""

    def __init__(self, seed: int):
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        logging.getLogger("ax").setLevel(logging.ERROR)
        self.client = Client(random_seed=seed)
        self.client.configure_experiment(
            parameters=[
                RangeParameterConfig(name="x", bounds=(0, 1), parameter_type="float"),
                RangeParameterConfig(name="y", bounds=(-5, 5), parameter_type="float"),
                RangeParameterConfig(
                    name="rate", bounds=(1e-5, 1e-1), parameter_type="float", scaling="log"
                ),
                RangeParameterConfig(name="layers", bounds=(1, 16), parameter_type="int"),
                ChoiceParameterConfig(
                    name="rule", values=SPACE["rule"], parameter_type="str", is_ordered=False
                ),
                RangeParameterConfig(name="t", bounds=(1, HORIZON), parameter_type="float"),
            ]
        )
        self.client.configure_optimization(objective="outcome")
        self.asked: int | None = None

    def ask(self, t: float) -> Values:
        """Return the next action."""
        [(self.asked, values)] = self.client.get_next_trials(
            max_trials=1, fixed_parameters={"t": t}
        ).items()
        return {name: value for name, value in values.items() if name != "t"}

    def tell(self, values: Values, t: float, outcome: float) -> None:
        """Add an outcome."""
        number, self.asked = self.asked, None
        if number is None:
            number = self.client.attach_trial(parameters={**values, "t": t})
        self.client.complete_trial(trial_index=number, raw_data={"outcome": outcome})


class RandomSearch:
    """Actions at random."""

    def __init__(self, seed: int):
        self.optimizer = recipes.random_search(
            bounds=SPACE, generator=Generator().manual_seed(seed)
        )

    def ask(self, t: float) -> Values:
        """Return the next action."""
        return self.optimizer.ask(t).parameters

    def tell(self, values: Values, t: float, outcome: float) -> None:
        """Learn nothing."""


METHODS: dict[str, Callable[[int], Method]] = {
    "tv_gp_ucb": Ours,
    "Optuna TPE": partial(Optuna, "TPESampler", {}),
    "Optuna GPSampler": partial(Optuna, "GPSampler", {"deterministic_objective": False}),
    "Ax, time as a parameter": Ax,
    "random": RandomSearch,
}


def play(job: tuple[str, int]) -> tuple[float, float]:
    """Return mean regret and median CPU seconds of rounds 16 to 80."""
    name, seed = job
    warnings.simplefilter("ignore")
    bump, method = Bump(seed), METHODS[name](seed)
    regret, seconds = [], []
    for n in range(HORIZON):
        t = n + 1.0
        began = time.process_time()
        values = bump.first[n] if n < INITIAL else method.ask(t)
        method.tell(values, t, bump.observe(values, t))
        seconds.append(time.process_time() - began)
        regret.append(bump.best(t) - bump.value(values, t))
    late: Tensor = torch.tensor(seconds[INITIAL:])
    return sum(regret[INITIAL:]) / (HORIZON - INITIAL), late.median().item()


def main() -> None:
    """Print the mean regret of each method, and its paired differences to ours."""
    options = parser(__doc__, seeds=10, first_seed=0, workers=1)
    options.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    given = options.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    jobs = [(name, seed) for seed in seeds for name in given.only]
    found = dict(zip(jobs, in_workers(play, jobs, given.workers), strict=True))
    regret = {name: [found[name, seed][0] for seed in seeds] for name in given.only}
    cpu = {name: statistics.median(found[name, seed][1] for seed in seeds) for name in given.only}
    columns = COMPARED | {"CPU s a round": "{cpu_seconds:.3f}"}
    title = f"mean regret over rounds {INITIAL + 1} to {HORIZON}, {len(seeds)} seeds"
    show(title, columns, compared(regret, cpu_seconds=cpu), given.json)


if __name__ == "__main__":
    main()
