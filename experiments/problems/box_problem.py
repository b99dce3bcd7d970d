"""Base class of standardized problems on a box, and the search for their optimum."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from scipy.optimize import minimize
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from tvbo.spaces import InputLayout
from tvbo.spaces.search_space import as_bounds
from tvbo.test_functions.base import DriftingProblem

UNIT_SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
STANDARDIZATION_POINTS = 2**14
SEARCH_POINTS = 2**12
SEARCH_STARTS = 32


class BoxProblem(DriftingProblem):
    r"""A function of an action in a box and of a time in ``[0, horizon]``, standardized.

    Its value is :math:`(f(x, t) - \text{mean}) / \text{scale}`, with the mean and the standard
    deviation of f over box and times, so that regret and ``noise_variance`` are in the unit that a
    prior of variance 1 has. Both are taken at the first 2^14 points of the Sobol sequence, not
    scrambled.

    Args:
        horizon: Last time, above 0.
        noise_variance: Variance of the observation noise, in the unit of the value.
        generator: Source of random parts, then of the noise; default a new one with a fixed seed.
        bounds: Bounds of the actions, ``2 x d``; default the unit square.

    Raises:
        ValueError: if ``horizon`` is not positive, or ``noise_variance`` negative.
        InputDataError: if ``bounds`` are not in order; when evaluated, if a time is outside
            ``[0, horizon]``.
    """

    def __init__(
        self,
        horizon: float,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
        bounds: Tensor = UNIT_SQUARE,
    ):
        if not 0 < horizon < math.inf:
            raise ValueError(f"Expected horizon > 0. Got {horizon}.")
        self.bounds = as_bounds("bounds", bounds)
        """Bounds of the actions, ``2 x d``."""
        self.horizon = float(horizon)
        super().__init__(InputLayout(self.bounds.shape[-1]), noise_variance, generator)
        self._optimal_actions: dict[float, Tensor] = {}
        self.draw(self.generator)

    def draw(self, generator: Generator) -> None:
        """Draw the random parts; here there are none."""
        return

    @abstractmethod
    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` at times ``n`` before standardization."""

    def best_actions(self, t: Tensor) -> Tensor | None:
        """Return the best actions, ``n x d``, at times ``n``; None, here, searches for them."""
        return None

    def search_starts(self) -> Tensor | None:
        """Return actions, ``m x d``, from which the search also starts; None, here, has none."""
        return None

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the function over box and times."""
        times = torch.tensor([[0.0], [self.horizon]], dtype=torch.float64)
        rows = sobol_points(torch.cat([self.bounds, times], dim=-1), STANDARDIZATION_POINTS)
        values = self.function(rows[:, :-1], rows[:, -1])
        return values.mean().item(), values.std(correction=0).item()

    def optimal_action(self, t: float) -> Tensor:
        """Return the action, ``d``, with the largest value at time ``t``.

        Raises:
            InputDataError: if ``t`` is outside ``[0, horizon]``.
        """
        t = float(t)
        if t not in self._optimal_actions:
            times = torch.tensor([t], dtype=torch.float64)
            self._check_times(times)
            known = self.best_actions(times)
            self._optimal_actions[t] = self._search(t) if known is None else known[0]
        return self._optimal_actions[t].clone()

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest value of an action at time ``t``, that of :meth:`optimal_action`."""
        best = self.layout.rows(self.optimal_action(t).unsqueeze(0), t)
        return self.evaluate_true(best).item()

    def _evaluate_true(self, X: Tensor) -> Tensor:
        self._check_times(X[:, -1])
        mean, scale = self.moments
        return (self.function(X[:, :-1], X[:, -1]) - mean) / scale

    def _check_times(self, t: Tensor) -> None:
        outside = (t < 0) | (t > self.horizon)
        if outside.any():
            raise InputDataError(
                f"Expected times in [0, {self.horizon:g}]. Got t={t[outside][0]:g}."
            )

    def _search(self, t: float) -> Tensor:
        """Return the best action, ``d``, at a time, by a search without randomness.

        The best 32 of 4,096 Sobol points and the given starts are refined together by L-BFGS-B,
        then the best of them alone.
        """
        points, starts = sobol_points(self.bounds, SEARCH_POINTS), self.search_starts()
        points = points[self._values(points, t).topk(SEARCH_STARTS).indices]
        points = points if starts is None else torch.cat([points, starts])
        for count, tolerance in ((len(points), 1e-5), (1, 1e-9)):
            found = torch.cat([points, self._refined(points[:count], t, tolerance)])
            points = found[self._values(found, t).argsort(descending=True)]
        return points[0]

    def _values(self, X: Tensor, t: float) -> Tensor:
        return self._evaluate_true(self.layout.rows(X, t))

    def _refined(self, points: Tensor, t: float, tolerance: float) -> Tensor:
        """Return local maximizers, ``n x d``, from starts: those of the sum of the values."""
        low, width = self.bounds[0], self.bounds[1] - self.bounds[0]

        def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
            unit = torch.from_numpy(u).reshape(points.shape).requires_grad_()
            with torch.enable_grad():
                total = -self._values(low + width * unit, t).sum()
            (gradient,) = torch.autograd.grad(total, unit)
            # A root of an absolute value has no slope at zero.
            return float(total.item()), gradient.nan_to_num(0.0, 0.0, 0.0).flatten().numpy()

        result = minimize(
            loss,
            ((points - low) / width).flatten().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, 1.0)] * points.numel(),
            options={"maxiter": 1000, "ftol": 0.0, "gtol": tolerance},
        )
        found = low + width * torch.from_numpy(result.x).reshape(points.shape)
        return found.clamp(*self.bounds)


def sobol_points(bounds: Tensor, num_points: int) -> Tensor:
    """Return the first points of the Sobol sequence on a box, ``num_points x d``, no scrambling."""
    engine = SobolEngine(bounds.shape[-1], scramble=False)
    return bounds[0] + (bounds[1] - bounds[0]) * engine.draw(num_points, dtype=torch.float64)
