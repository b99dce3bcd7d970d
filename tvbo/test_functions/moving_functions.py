"""Peaks that move on the unit square."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Generator, Tensor

from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.test_functions.box_problem import UNIT_SQUARE, BoxProblem
from tvbo.values import as_numbers


class PeakProblem(BoxProblem):
    r"""The highest of Gaussian peaks on the unit square, whose centers and heights depend on time.

    .. math:: f(x, t) = \max_i h_i(t) \exp\Big(-\frac{\|x - c_i(t)\|^2}{2 w^2}\Big)

    Since centers lie in the square, the optimum is the center of the highest peak at every time.

    Args:
        width: The width w of the peaks, above 0.
        horizon: Last time, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of random parts, then of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if ``width`` or ``horizon`` is not positive, or ``noise_variance`` negative.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.
    """

    def __init__(
        self,
        width: float,
        horizon: float,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if not 0 < width < math.inf:
            raise ValueError(f"Expected width > 0. Got {width}.")
        super().__init__(UNIT_SQUARE, horizon, noise_variance, generator)
        self.width = width

    @abstractmethod
    def centers(self, t: Tensor) -> Tensor:
        """Return the centers, ``n x m x 2``, of the peaks at times ``n``."""

    def heights(self, t: Tensor) -> Tensor:
        """Return the heights, ``n x m``, of the peaks at times ``n``: one, unless they wander."""
        return torch.ones(len(t), 1, dtype=torch.float64)

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        square = (X.unsqueeze(-2) - self.centers(t)).square().sum(-1)
        return (self.heights(t) * torch.exp(-square / (2 * self.width**2))).amax(-1)

    def _best_action(self, t: float) -> Tensor:
        time = torch.tensor([t], dtype=torch.float64)
        return self.centers(time)[0, self.heights(time)[0].argmax()]


class MovingPeaks(PeakProblem):
    r"""Peaks that wander, and rise and fall, so that another becomes the highest (Branke, 1999).

    .. math:: c_i(t) = \tfrac12 + 0.4 \sin(2 \pi a_i t / T + \alpha_i), \quad
        h_i(t) = 1 + 0.4 \sin(2 \pi b_i t / T + \beta_i)

    in each coordinate, with phases drawn uniformly and numbers of turns per horizon T drawn between
    one half and one and a half. The paper moves peaks by random steps; these move smoothly.

    Branke, "Memory enhanced evolutionary algorithms for changing optimization problems".

    Args:
        horizon: Last time T, above 0.
        num_peaks: Number of peaks, at least 1.
        width: The width of the peaks, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of turns and phases, then of the noise; default a new one with a fixed
            seed.

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: float,
        num_peaks: int = 5,
        width: float = 0.15,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if num_peaks < 1:
            raise ValueError(f"Expected num_peaks >= 1. Got {num_peaks}.")
        generator = default_generator(generator, PROBLEM_SEED)
        super().__init__(width, horizon, noise_variance, generator)
        uniform = torch.rand(2, num_peaks, 3, dtype=torch.float64, generator=generator)
        self.turns = 0.5 + uniform[0]
        """Turns per horizon of both coordinates and of the height, ``m x 3``."""
        self.phases = 2 * math.pi * uniform[1]
        """Phases of the same in radians, ``m x 3``."""

    def centers(self, t: Tensor) -> Tensor:
        """Return the centers, ``n x m x 2``, of the peaks at times ``n``."""
        return 0.5 + 0.4 * self._waves(t)[..., :2]

    def heights(self, t: Tensor) -> Tensor:
        """Return the heights, ``n x m``, of the peaks at times ``n``."""
        return 1 + 0.4 * self._waves(t)[..., 2]

    def _waves(self, t: Tensor) -> Tensor:
        angle = 2 * math.pi * self.turns * (t / self.horizon).reshape(-1, 1, 1)
        return torch.sin(angle + self.phases)


class SuddenJump(PeakProblem):
    """A peak that rests, and jumps at given times to another place.

    Args:
        horizon: Last time, above 0.
        jump_times: Times in ``[0, horizon]``, increasing, from which on the peak is at its next
            place; default 0.3, 0.55 and 0.8 of the horizon.
        width: The width of the peak, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the places, at least 0.4 from one to the next and 0.1 from the edges,
            then of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: float,
        jump_times: Tensor | None = None,
        width: float = 0.2,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        generator = default_generator(generator, PROBLEM_SEED)
        super().__init__(width, horizon, noise_variance, generator)
        if jump_times is None:
            jump_times = horizon * torch.tensor([0.3, 0.55, 0.8], dtype=torch.float64)
        self.jump_times = as_numbers("jump_times", jump_times)
        """Times of the jumps, ``m``."""
        inside = (self.jump_times >= 0) & (self.jump_times <= horizon)
        if not inside.all() or not (self.jump_times.diff() > 0).all():
            raise ValueError(
                f"Expected jump_times in [0, {horizon:g}] that increase. "
                f"Got {self.jump_times.tolist()}."
            )
        places = [self._draw(generator)]
        while len(places) <= len(self.jump_times):
            place = self._draw(generator)
            if (place - places[-1]).norm() >= 0.4:
                places.append(place)
        self.places = torch.stack(places)
        """Places of the peak, ``m + 1 x 2``."""

    @staticmethod
    def _draw(generator: Generator) -> Tensor:
        return 0.1 + 0.8 * torch.rand(2, dtype=torch.float64, generator=generator)

    def centers(self, t: Tensor) -> Tensor:
        """Return the center, ``n x 1 x 2``, of the peak at times ``n``."""
        which = torch.searchsorted(self.jump_times, t.contiguous(), right=True)
        return self.places[which].unsqueeze(-2)


class SeasonalOptimum(PeakProblem):
    r"""A peak that moves back and forth with a season, and slowly away if there is a trend.

    .. math:: c(t) = \tfrac12 + \sum_{k=1}^{3} a_k \sin(2 \pi k t / P + \phi_k)
        + v\,(t / T - \tfrac12)

    in each coordinate, with amplitudes a of 0.2, 0.07 and 0.03, and phases drawn uniformly.

    Args:
        horizon: Last time T, above 0.
        period: The period P; default a quarter of the horizon.
        trend: Distance v in each coordinate over the horizon, in [-0.4, 0.4].
        width: The width of the peak, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the phases, then of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: float,
        period: float | None = None,
        trend: float = 0.0,
        width: float = 0.2,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        generator = default_generator(generator, PROBLEM_SEED)
        super().__init__(width, horizon, noise_variance, generator)
        self.period = horizon / 4 if period is None else period
        self.trend = trend
        if not 0 < self.period < math.inf or not abs(trend) <= 0.4:
            raise ValueError(
                f"Expected period > 0 and trend in [-0.4, 0.4]. Got {self.period}, {trend}."
            )
        self.phases = 2 * math.pi * torch.rand(2, 3, dtype=torch.float64, generator=generator)
        """Phases of the season and its harmonics in radians, ``2 x 3``."""

    def centers(self, t: Tensor) -> Tensor:
        """Return the center, ``n x 1 x 2``, of the peak at times ``n``."""
        t = t.reshape(-1, 1, 1, 1)
        harmonics = torch.arange(1, 4, dtype=torch.float64)
        waves = torch.sin(2 * math.pi * harmonics * t / self.period + self.phases)
        season = waves @ torch.tensor([0.2, 0.07, 0.03], dtype=torch.float64)
        return 0.5 + season + self.trend * (t.squeeze(-1) / self.horizon - 0.5)


class RotatingOptimum(BoxProblem):
    r"""A narrow ridge on the unit square in a frame that rotates about its middle.

    .. math:: f(x, t) = \exp\Big(-\frac{(u_1 - \rho)^2}{2 w^2} - \frac{u_2^2}{2 (w / 4)^2}\Big),
        \quad u = R(-2 \pi t / P)\,(x - \tfrac12)

    The center circles about the middle with radius ρ, and the axes of the ridge turn with it.

    Args:
        horizon: Last time, above 0.
        period: The period P of a turn, above 0; default the horizon.
        width: The longer width w of the ridge, above 0.
        radius: The radius ρ, in [0, 0.5].
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the noise; default a new one with a fixed seed. Nothing else is random.

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: float,
        period: float | None = None,
        width: float = 0.4,
        radius: float = 0.3,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        super().__init__(UNIT_SQUARE, horizon, noise_variance, generator)
        self.period = horizon if period is None else period
        self.width = width
        self.radius = radius
        if not (self.period > 0 and width > 0 and 0 <= radius <= 0.5):
            raise ValueError(
                "Expected period > 0, width > 0 and radius in [0, 0.5]. "
                f"Got {self.period}, {width}, {radius}."
            )

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        along, across = self._axes(t)
        x = X - 0.5
        u = (x * along).sum(-1) - self.radius, (x * across).sum(-1)
        return torch.exp(-(u[0].square() + 16 * u[1].square()) / (2 * self.width**2))

    def _axes(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the direction of the ridge and the one across, ``n x 2`` each, at times ``n``."""
        angle = 2 * math.pi * t / self.period
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)

    def _best_action(self, t: float) -> Tensor:
        return 0.5 + self.radius * self._axes(torch.tensor([t], dtype=torch.float64))[0][0]
