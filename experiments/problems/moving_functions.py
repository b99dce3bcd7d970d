"""Functions on the unit square that move: peaks, a ridge, a draw of a Gaussian process."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from experiments.problems.box_problem import BoxProblem
from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.test_functions.drifting_gp import drifting_values

NUM_PEAKS, NUM_FEATURES = 5, 256
LENGTHSCALE = 0.2
"""Lengthscale of the RBF kernel of the drifting draw."""


class MovingPeaks(BoxProblem):
    r"""The highest of five peaks that wander, and rise and fall (Branke, 1999).

    .. math:: f(x, t) = \max_i h_i(t) \exp\Big(-\frac{\|x - c_i(t)\|^2}{2 \cdot 0.15^2}\Big), \quad
        c_i(t) = \tfrac12 + 0.4 \sin(2 \pi a_i t / T + \alpha_i), \quad
        h_i(t) = 1 + 0.4 \sin(2 \pi b_i t / T + \beta_i)

    in each coordinate, with phases drawn uniformly and numbers of turns per horizon T drawn between
    one half and one and a half. The paper moves peaks by random steps; these move smoothly. Since
    centers lie in the square, the optimum is that of the highest peak.

    Branke, "Memory enhanced evolutionary algorithms for changing optimization problems".

    Args:
        horizon: Last time T, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of turns and phases, then of the noise; default a new one with a fixed
            seed.
    """

    def draw(self, generator: Generator) -> None:
        """Draw turns and phases."""
        uniform = torch.rand(2, NUM_PEAKS, 3, dtype=torch.float64, generator=generator)
        self.turns = 0.5 + uniform[0]
        """Turns per horizon of both coordinates and of the height, ``m x 3``."""
        self.phases = 2 * math.pi * uniform[1]
        """Phases of the same in radians, ``m x 3``."""

    def peaks(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return centers, ``n x m x 2``, and heights, ``n x m``, of the peaks at times ``n``."""
        angle = 2 * math.pi * self.turns * (t / self.horizon).reshape(-1, 1, 1)
        waves = torch.sin(angle + self.phases)
        return 0.5 + 0.4 * waves[..., :2], 1 + 0.4 * waves[..., 2]

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        centers, heights = self.peaks(t)
        return (heights * _peak(X.unsqueeze(-2), centers, 0.15)).amax(-1)

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the centers, ``n x 2``, of the highest peaks at times ``n``."""
        centers, heights = self.peaks(t)
        return centers[torch.arange(len(t)), heights.argmax(-1)]


class SuddenJump(BoxProblem):
    """A peak of width 0.2 that rests, and jumps to another place at 0.3, 0.55, 0.8 of the horizon.

    Args:
        horizon: Last time, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the places, at least 0.4 from one to the next and 0.1 from the edges,
            then of the noise; default a new one with a fixed seed.
    """

    def draw(self, generator: Generator) -> None:
        """Draw the places."""
        self.jump_times = self.horizon * torch.tensor([0.3, 0.55, 0.8], dtype=torch.float64)
        """Times from which on the peak is at its next place, ``3``."""
        places: list[Tensor] = []
        while len(places) <= len(self.jump_times):
            place = 0.1 + 0.8 * torch.rand(2, dtype=torch.float64, generator=generator)
            if not places or (place - places[-1]).norm() >= 0.4:
                places.append(place)
        self.places = torch.stack(places)
        """Places of the peak, ``4 x 2``."""

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        return _peak(X, self.best_actions(t), 0.2)

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the center, ``n x 2``, of the peak at times ``n``."""
        return self.places[torch.searchsorted(self.jump_times, t.contiguous(), right=True)]


class SeasonalOptimum(BoxProblem):
    r"""A peak of width 0.2 that moves back and forth with a season, four times in the horizon T.

    .. math:: c(t) = \tfrac12 + \sum_{k=1}^{3} a_k \sin(8 \pi k t / T + \phi_k)

    in each coordinate, with amplitudes a of 0.2, 0.07 and 0.03, and phases drawn uniformly.

    Args:
        horizon: Last time T, above 0.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the phases, then of the noise; default a new one with a fixed seed.
    """

    def draw(self, generator: Generator) -> None:
        """Draw the phases."""
        uniform = torch.rand(2, 3, dtype=torch.float64, generator=generator)
        self.phases = 2 * math.pi * uniform
        """Phases of the season and its harmonics in radians, ``2 x 3``."""

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        return _peak(X, self.best_actions(t), 0.2)

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the center, ``n x 2``, of the peak at times ``n``."""
        harmonics = torch.arange(1, 4, dtype=torch.float64)
        angle = 2 * math.pi * harmonics * t.reshape(-1, 1, 1) / (self.horizon / 4)
        waves = torch.sin(angle + self.phases)
        return 0.5 + waves @ torch.tensor([0.2, 0.07, 0.03], dtype=torch.float64)


class RotatingOptimum(BoxProblem):
    r"""A narrow ridge on the unit square in a frame that turns once about its middle.

    .. math:: f(x, t) = \exp\Big(-\frac{(u_1 - 0.3)^2}{2 \cdot 0.4^2}
        - \frac{u_2^2}{2 \cdot 0.1^2}\Big), \quad u = R(-2 \pi t / T)\,(x - \tfrac12)

    The center circles about the middle with radius 0.3, and the axes of the ridge turn with it.
    Nothing is random but the noise.
    """

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n`` before standardization."""
        along = self._direction(t)
        across = torch.stack([-along[:, 1], along[:, 0]], dim=-1)
        x = X - 0.5
        u = (x * along).sum(-1) - 0.3, (x * across).sum(-1)
        return torch.exp(-(u[0].square() + 16 * u[1].square()) / (2 * 0.4**2))

    def best_actions(self, t: Tensor) -> Tensor:
        """Return the center, ``n x 2``, of the ridge at times ``n``."""
        return 0.5 + 0.3 * self._direction(t)

    def _direction(self, t: Tensor) -> Tensor:
        """Return the direction of the ridge, ``n x 2``, at times ``n``."""
        angle = 2 * math.pi * t / self.horizon
        return torch.stack([angle.cos(), angle.sin()], dim=-1)


class DriftingFeatures(BoxProblem):
    r"""A draw from the Markov model of Bogunovic et al. (2016) by random Fourier features.

    .. math:: f(x, t) = \frac{1}{\sqrt m} \sum_{j=1}^m a_j(t) \cos \omega_j^\top x
        + b_j(t) \sin \omega_j^\top x

    The m = 256 frequencies are drawn from the spectral density of the RBF kernel with lengthscale
    0.2, and the weights follow
    :math:`a(t + 1) = \sqrt{1-\varepsilon}\,a(t) + \sqrt{\varepsilon}\,g(t + 1)` with standard
    normal g, so that every value has mean 0 and variance 1, and the correlation over a lag of s is
    :math:`(1-\varepsilon)^{s/2}`. It is not standardized again. Times are the integers from 0 to
    ``horizon``; its values between them are not defined.

    Args:
        horizon: Last time, an integer above 0.
        noise_variance: Variance of the observation noise, in the unit of the prior variance.
        generator: Source of frequencies and weights, then of the noise; default a new one with a
            fixed seed.
        forgetting_rate: ε per unit of time, in [0, 1].

    Raises:
        ValueError: if an argument is out of range.
        InputDataError: when evaluated, if a time is not an integer in ``[0, horizon]``.
    """

    moments = 0.0, 1.0

    def __init__(
        self,
        horizon: int,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
        forgetting_rate: float = 0.03,
    ):
        self.forgetting_rate = check_forgetting_rate(forgetting_rate).item()
        if not float(horizon).is_integer():
            raise ValueError(f"Expected a horizon that is an integer. Got {horizon}.")
        super().__init__(horizon, noise_variance, generator)

    def draw(self, generator: Generator) -> None:
        """Draw frequencies and weights."""
        normal = torch.randn(2, NUM_FEATURES, dtype=torch.float64, generator=generator)
        self.frequencies = normal / LENGTHSCALE
        """Frequencies in radians per unit, ``2 x m``."""
        root = torch.eye(2 * NUM_FEATURES, dtype=torch.float64)
        times = torch.arange(int(self.horizon) + 1)
        self.weights = drifting_values(root, self.forgetting_rate, times, generator)
        """Weights of cosines, then of sines, ``horizon + 1 x 2 m``."""

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` at times ``n``."""
        angle = X @ self.frequencies
        features = torch.cat([angle.cos(), angle.sin()], dim=-1)
        return (features * self.weights[t.long()]).sum(-1) / math.sqrt(NUM_FEATURES)

    def _check_times(self, t: Tensor) -> None:
        super()._check_times(t)
        between = t != t.round()
        if between.any():
            raise InputDataError(f"Expected times that are integers. Got t={t[between][0]:g}.")


def _peak(X: Tensor, center: Tensor, width: float) -> Tensor:
    """Return the values of a Gaussian peak of height one."""
    return torch.exp(-(X - center).square().sum(-1) / (2 * width**2))
