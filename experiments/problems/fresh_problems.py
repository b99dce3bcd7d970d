"""Eight problems on boxes to compare methods on, on which no method was tuned."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from experiments.problems.box_problem import BoxProblem
from tvbo.randomness import PROBLEM_SEED, default_generator

NUM_PEAKS, CHANGES = 10, 8
WIDTHS = 0.12, 0.3
"""Smallest and largest width of a peak."""


class RandomPeaks(BoxProblem):
    r"""The highest of ten cones on the unit cube that make random steps (Branke, 1999).

    .. math:: f(x, t) = \max_i h_i - \|x - c_i\| / (w_i \sqrt d), \quad f \ge 0

    Eight times within the horizon, at even intervals, each center takes a normal step and each
    height changes; centers are reflected at the faces. The function rests in between. With
    ``num_levels``, heights are rounded down to so many, so that there are plateaus.

    Branke, "Memory enhanced evolutionary algorithms for changing optimization problems".

    Args:
        dim: Number of inputs.
        horizon: Last time, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the peaks, then of the noise.
        num_levels: Number of levels from 0 to 1; 0 for none.
    """

    def __init__(
        self,
        dim: int,
        horizon: float,
        noise_variance: float,
        generator: Generator,
        num_levels: int = 0,
    ):
        self.dim, self.num_levels = dim, num_levels
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dim)
        super().__init__(horizon, noise_variance, generator, bounds)

    def draw(self, generator: Generator) -> None:
        """Draw peaks and their steps."""
        shape = CHANGES + 1, NUM_PEAKS, self.dim + 1
        steps = torch.randn(shape, dtype=torch.float64, generator=generator)
        uniform = torch.rand(NUM_PEAKS, self.dim + 2, dtype=torch.float64, generator=generator)
        steps[:, :, :-1] *= 0.12 / math.sqrt(self.dim)
        steps[:, :, -1] *= 0.08
        steps[0] = 0.0
        walk = steps.cumsum(0)
        # A walk that is reflected at 0 and 1.
        self.centers = ((uniform[:, : self.dim] + walk[..., :-1]) % 2 - 1).abs()
        self.centers = 1 - self.centers
        self.heights = (0.6 + 0.4 * uniform[:, self.dim] + walk[..., -1]).clamp(0.3, 1.2)
        low, high = WIDTHS
        self.widths = low + (high - low) * uniform[:, -1]

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` at times ``n`` before standardization."""
        epoch = (t * (CHANGES + 1) / self.horizon).long().clamp(max=CHANGES)
        distance = (X.unsqueeze(-2) - self.centers[epoch]).norm(dim=-1) / math.sqrt(self.dim)
        values = (self.heights[epoch] - distance / self.widths).amax(-1).clamp_min(0.0)
        return (values * self.num_levels).floor() / self.num_levels if self.num_levels else values

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the centers, ``n x d``, of the highest peaks at times ``n``."""
        epoch = (t * (CHANGES + 1) / self.horizon).long().clamp(max=CHANGES)
        return self.centers[epoch, self.heights[epoch].argmax(-1)]


class WanderingBowl(BoxProblem):
    r"""A bowl on the unit cube whose middle moves smoothly, in some of its inputs.

    .. math:: f(x, t) = -\sum_{j \le k} w_j (x_j - c_j(t))^2, \quad
        c_j(t) = \tfrac12 + 0.3 \sin(2 \pi a_j t / T + \alpha_j)

    Args:
        dim: Number of inputs.
        num_active: Number k of those on which it depends.
        horizon: Last time T, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of turns a, phases and weights, then of the noise.
        turns: Mean number of turns in the horizon; 0 stands still.
    """

    def __init__(
        self,
        dim: int,
        num_active: int,
        horizon: float,
        noise_variance: float,
        generator: Generator,
        turns: float = 1.0,
    ):
        self.num_active, self.mean_turns = num_active, turns
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dim)
        super().__init__(horizon, noise_variance, generator, bounds)

    def draw(self, generator: Generator) -> None:
        """Draw turns, phases and weights."""
        uniform = torch.rand(3, self.num_active, dtype=torch.float64, generator=generator)
        self.turns = self.mean_turns * (0.5 + uniform[0])
        self.phases = 2 * math.pi * uniform[1]
        self.weights = 0.5 + uniform[2]

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` at times ``n`` before standardization."""
        off = X[:, : self.num_active] - self.best_actions(t)[:, : self.num_active]
        return -(self.weights * off.square()).sum(-1)

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the middle, ``n x d``, at times ``n``; one half where nothing depends on it."""
        angle = 2 * math.pi * self.turns * (t / self.horizon).unsqueeze(-1) + self.phases
        middle = torch.full((len(t), self.layout.num_actions), 0.5, dtype=torch.float64)
        middle[:, : self.num_active] += 0.3 * angle.sin()
        return middle


class UnevenNoise(WanderingBowl):
    """A bowl on the unit square whose noise has three times the deviation at one side."""

    def noise(self, X: Tensor, generator: Generator) -> Tensor:
        """Return noise, ``n``, in units of its usual deviation."""
        draw = torch.randn(len(X), dtype=torch.float64, generator=generator)
        return draw * (0.3 + 2.7 * X[:, 0])


class HeavyTails(WanderingBowl):
    """A bowl on the unit square whose noise has Student's t distribution, 3 degrees of freedom."""

    def noise(self, X: Tensor, generator: Generator) -> Tensor:
        """Return noise, ``n``, in units of its usual deviation."""
        normal = torch.randn(len(X), 4, dtype=torch.float64, generator=generator)
        return normal[:, 0] / normal[:, 1:].square().mean(-1).sqrt() / math.sqrt(3)


def fresh_problems(
    horizon: int, noise_variance: float = 0.0, generator: Generator | None = None
) -> dict[str, BoxProblem]:
    """Return the problems by name, with the optimum of each at every time.

    Args:
        horizon: Last time, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized values.
        generator: Source of the seeds of all random parts; default a new one with a fixed seed.
    """
    generator = default_generator(generator, PROBLEM_SEED)
    seeds = torch.randint(2**62, (8,), generator=generator).tolist()
    own = iter([torch.Generator().manual_seed(seed) for seed in seeds])
    return {
        "random peaks, 2": RandomPeaks(2, horizon, noise_variance, next(own)),
        "random peaks, 5": RandomPeaks(5, horizon, noise_variance, next(own)),
        "plateaus": RandomPeaks(2, horizon, noise_variance, next(own), num_levels=6),
        "uneven noise": UnevenNoise(2, 2, horizon, noise_variance, next(own)),
        "heavy tails": HeavyTails(2, 2, horizon, noise_variance, next(own)),
        "bowl, 10": WanderingBowl(10, 10, horizon, noise_variance, next(own)),
        "bowl, 3 of 12": WanderingBowl(12, 3, horizon, noise_variance, next(own)),
        "still bowl, 6": WanderingBowl(6, 6, horizon, noise_variance, next(own), turns=0.0),
    }
