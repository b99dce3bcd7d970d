"""Fifteen problems on boxes whose optimum is known at every time, to compare methods on."""

from __future__ import annotations

from functools import cache

import torch
from botorch.test_functions import (
    Ackley,
    EggHolder,
    Hartmann,
    Powell,
    Rastrigin,
    Rosenbrock,
    Shekel,
    StyblinskiTang,
    SyntheticTestFunction,
)
from torch import Generator, Tensor

from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.test_functions.box_problem import BoxProblem
from tvbo.test_functions.drifting_features import DriftingFeatures
from tvbo.test_functions.dynamic_functions import DynamicFunction, Schwefel
from tvbo.test_functions.moving_functions import (
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)


def dynamic_problems(
    horizon: int, noise_variance: float = 0.0, generator: Generator | None = None
) -> dict[str, BoxProblem]:
    """Return fifteen drifting problems by name, with the optimum of each at every time.

    The first ten are the functions of Bardou et al. (2024), on their boxes; the number in a name
    counts the inputs of the function, of which the last is time. In Rastrigin, Schwefel,
    Styblinski-Tang and Ackley the best action is the same at all times, and only its value drifts.
    In the other five the best action moves or jumps on the unit square.

    Each problem has a generator of its own, seeded from the given one: its random parts and its
    noise do not depend on what is done with the others.

    Args:
        horizon: Last time, an integer above 0. All but the drifting GP, which has ε = 0.03 per unit
            of time, drift as far within a short horizon as within a long one.
        noise_variance: Variance of the observation noise, in the unit of the standardized values.
        generator: Source of the seeds; default a new one with a fixed seed.

    Raises:
        ValueError: if ``horizon`` is not a positive integer, or ``noise_variance`` negative.
    """
    generator = default_generator(generator, PROBLEM_SEED)
    functions: dict[str, SyntheticTestFunction] = {
        "Rastrigin-5": Rastrigin(5, negate=True, bounds=[(-4.0, 4.0)] * 5),
        "Schwefel-4": Schwefel(4, negate=True),
        "Styblinski-Tang-4": StyblinskiTang(4, negate=True),
        "Eggholder-2": EggHolder(negate=True),
        "Ackley-4": Ackley(4, negate=True, bounds=[(-32.0, 32.0)] * 4),
        "Rosenbrock-3": Rosenbrock(3, negate=True, bounds=[(-1.0, 1.5)] * 3),
        "Shekel-4": Shekel(negate=True),
        "Hartmann-3": Hartmann(3, negate=True),
        "Hartmann-6": Hartmann(6, negate=True),
        "Powell-4": Powell(4, negate=True),
    }
    moving: dict[str, type[BoxProblem]] = {
        "moving peaks": MovingPeaks,
        "rotating": RotatingOptimum,
        "sudden jump": SuddenJump,
        "seasonal": SeasonalOptimum,
        "drifting GP": DriftingFeatures,
    }
    seeds = torch.randint(2**62, (len(functions) + len(moving),), generator=generator)
    own = iter([torch.Generator().manual_seed(seed) for seed in seeds.tolist()])
    problems: dict[str, BoxProblem] = {}
    for name, function in functions.items():
        where = {"starts": _centers(function), "best": _best_action(function)}
        problems[name] = DynamicFunction(function, horizon, noise_variance, next(own), **where)
        # Nothing in these is drawn: a benchmark over many seeds searches for each optimum once.
        problems[name]._optimal_actions = _optimal_actions(name, horizon)
    for name, problem in moving.items():
        problems[name] = problem(
            horizon=horizon, noise_variance=noise_variance, generator=next(own)
        )  # type: ignore[call-arg]
    return problems


@cache
def _optimal_actions(name: str, horizon: float) -> dict[float, Tensor]:
    """Return the table of optimal actions by time that problems of one name share."""
    return {}


def _centers(function: SyntheticTestFunction) -> Tensor | None:
    """Return the actions, ``m x d``, near which a sum of peaks has its maxima, else None."""
    if isinstance(function, Shekel):
        return torch.as_tensor(function.C, dtype=torch.float64)[:, :-1]
    if isinstance(function, Hartmann):
        return 1e-4 * torch.as_tensor(function.P, dtype=torch.float64)[:, :-1]
    return None


def _best_action(function: SyntheticTestFunction) -> Tensor | None:
    """Return the best action, ``d``, if it is the same at all times, else None."""
    if not isinstance(function, Rastrigin | Schwefel | StyblinskiTang | Ackley):
        return None
    # The zeros of x + 2 tan x, squared, and of 4 x³ - 32 x + 5, in which the function is largest.
    places = {Schwefel: 420.9687463599820, StyblinskiTang: -2.903534027771177}
    place = places.get(type(function), 0.0)
    return torch.full((function.dim - 1,), place, dtype=torch.float64)
