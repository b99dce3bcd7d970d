"""A smooth peak on a box that moves on a circle."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from tvbo.spaces import InputLayout
from tvbo.test_functions.base import DriftingProblem


class MovingPeak(DriftingProblem):
    r"""A Gaussian peak on :math:`[0, 1]^2` that moves once around a circle per period.

    .. math:: f(x, t) = \exp\Big(-\frac{\|x - c(t)\|^2}{2 w^2}\Big), \quad
        c(t) = \tfrac12 + \rho\,(\cos 2\pi t/P, \sin 2\pi t/P)

    Its optimum is known at every real time, and its optimal value is 1.

    Args:
        period: The period P, in the user's unit of time.
        width: The width w of the peak.
        radius: The radius ρ of the circle, at most one half.
        noise_variance: Variance of the observation noise.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        period: float = 100.0,
        width: float = 0.25,
        radius: float = 0.3,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if period <= 0 or width <= 0 or not 0 <= radius <= 0.5:
            raise ValueError(
                "Expected period > 0, width > 0 and radius in [0, 0.5]. "
                f"Got {period}, {width}, {radius}."
            )
        super().__init__(InputLayout(2), noise_variance, generator)
        self.period, self.width, self.radius = period, width, radius
        self.bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        """The unit square, ``2 x 2``."""

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return 1, the optimal value at every time."""
        return 1.0

    def optimal_action(self, t: float) -> Tensor:
        """Return the center of the peak, ``2``."""
        return self._center(torch.tensor([t], dtype=torch.float64))

    def _center(self, t: Tensor) -> Tensor:
        """Return the centers of the peak, ``... x 2``, at times ``... x 1``."""
        angle = 2 * math.pi * t / self.period
        return 0.5 + self.radius * torch.cat([angle.cos(), angle.sin()], dim=-1)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        square = (X[:, :2] - self._center(X[:, -1:])).square().sum(-1)
        return torch.exp(-square / (2 * self.width**2))
