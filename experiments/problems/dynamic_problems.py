"""Fifteen problems on boxes whose optimum is known at every time, to compare methods on."""

from __future__ import annotations

from collections import defaultdict

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

from experiments.problems.box_problem import BoxProblem
from experiments.problems.moving_functions import (
    DriftingFeatures,
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)
from tvbo.randomness import PROBLEM_SEED, default_generator

OPTIMA: defaultdict[tuple[str, float], dict[float, Tensor]] = defaultdict(dict)
"""Tables of best actions by time, which problems of one name and horizon share."""


class DynamicFunction(BoxProblem):
    r"""A static test function whose last input is time, to be maximized (Bardou et al., 2024).

    Time 0 is the lower bound of the last input, and ``horizon`` its upper bound. Values are
    standardized. The optimum is found by a search without randomness, once per time, unless it is
    given.

    Bardou, Thiran and Ranieri, "This Too Shall Pass: Removing Stale Observations in Dynamic
    Bayesian Optimization".

    Args:
        function: A function of ``d + 1`` inputs, to be maximized: one of BoTorch's with
            ``negate=True``.
        horizon: Time that the upper bound of the last input stands for.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the noise; default a new one with a fixed seed.
        best: The best value of every coordinate, where it is known and the same at all times.
        optima: Best actions by time, which is added to; None begins a table.

    Raises:
        ValueError: if ``horizon`` is not positive, or ``noise_variance`` negative.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.

    Example:
        >>> problem = DynamicFunction(Hartmann(3, negate=True), horizon=80)
    """

    def __init__(
        self,
        function: SyntheticTestFunction,
        horizon: float,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
        best: float | None = None,
        optima: dict[float, Tensor] | None = None,
    ):
        bounds = torch.as_tensor(function.bounds, dtype=torch.float64)
        super().__init__(horizon, noise_variance, generator, bounds[:, :-1])
        self.static_function = function
        self.time_bounds = bounds[:, -1]
        """Values of the last input at times 0 and ``horizon``."""
        self.best = best
        self._optimal_actions = {} if optima is None else optima

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` at times ``n`` before standardization."""
        low, high = self.time_bounds
        last = low + (high - low) * (t / self.horizon)
        inputs = torch.cat([X, last.unsqueeze(-1)], dim=-1)
        values: Tensor = self.static_function(inputs, noise=False)
        return values

    def best_actions(self, t: Tensor) -> Tensor | None:
        """Return the best action at times ``n``, ``n x d``, if it is known."""
        shape = len(t), self.layout.num_actions
        return None if self.best is None else torch.full(shape, self.best, dtype=torch.float64)

    def search_starts(self) -> Tensor | None:
        """Return the actions, ``m x d``, near which a sum of peaks has its maxima."""
        function = self.static_function
        if isinstance(function, Shekel):
            return torch.as_tensor(function.C, dtype=torch.float64)[:, :-1]
        if isinstance(function, Hartmann):
            return 1e-4 * torch.as_tensor(function.P, dtype=torch.float64)[:, :-1]
        return None


class Schwefel(SyntheticTestFunction):
    r"""Schwefel's function, which BoTorch does not have.

    .. math:: f(x) = 418.9829\,d - \sum_i x_i \sin \sqrt{|x_i|}

    Args:
        dim: Number of inputs, each in [-500, 500].
        negate: Whether to negate the function.
    """

    _optimal_value = 0.0

    def __init__(self, dim: int = 2, negate: bool = False):
        self.dim = dim
        self.continuous_inds = list(range(dim))
        self._bounds = [(-500.0, 500.0)] * dim
        self._optimizers = [(420.968746,) * dim]
        super().__init__(negate=negate)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return 418.9829 * self.dim - (X * X.abs().sqrt().sin()).sum(-1)


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
    # With the best value of every coordinate: the zeros of x + 2 tan x, squared, for Schwefel, and
    # of 4 x³ - 32 x + 5, in which the function is largest, for Styblinski and Tang.
    functions: dict[str, tuple[SyntheticTestFunction, float | None]] = {
        "Rastrigin-5": (Rastrigin(5, negate=True, bounds=[(-4.0, 4.0)] * 5), 0.0),
        "Schwefel-4": (Schwefel(4, negate=True), 420.9687463599820),
        "Styblinski-Tang-4": (StyblinskiTang(4, negate=True), -2.903534027771177),
        "Eggholder-2": (EggHolder(negate=True), None),
        "Ackley-4": (Ackley(4, negate=True, bounds=[(-32.0, 32.0)] * 4), 0.0),
        "Rosenbrock-3": (Rosenbrock(3, negate=True, bounds=[(-1.0, 1.5)] * 3), None),
        "Shekel-4": (Shekel(negate=True), None),
        "Hartmann-3": (Hartmann(3, negate=True), None),
        "Hartmann-6": (Hartmann(6, negate=True), None),
        "Powell-4": (Powell(4, negate=True), None),
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
    for name, (function, best) in functions.items():
        # Nothing in these is drawn: a benchmark over many seeds searches for each optimum once.
        optima = OPTIMA[name, horizon]
        problems[name] = DynamicFunction(
            function, horizon, noise_variance, next(own), best=best, optima=optima
        )
    for name, make in moving.items():
        problems[name] = make(horizon, noise_variance, next(own))
    return problems
