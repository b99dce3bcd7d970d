"""Newton's method near a minimum, with a Hessian that is carried along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]
"""Gives a value and a gradient."""

STEP = 1e-3
"""Of the differences that give a Hessian: parameters are logarithms, or of the order of one."""

CLOSE = 1e-8
"""A minimum is reached where the quadratic model expects to gain less than this, in nats."""

SHORT = 1e-2
"""And where its step is shorter than this in every parameter: where a function is flat, as in the
logarithm of a noise that is next to nothing, a far step may promise little and lead to much."""

FLATTEST = 1e-8
"""Smallest curvature that a model is given, as a share of the largest."""

MAX_STEPS, HALVINGS = 20, 5
"""Steps, each of length one at most in every parameter, and halvings of a step that goes uphill,
before it is said that the function is not near a minimum."""


class Quadratic:
    """A Hessian, kept up to date by BFGS from every step taken with it.

    Args:
        hessian: ``p x p``.
        held: Which of the ``p`` parameters stood at an end of their range and would have gone
            beyond: the model knows nothing of them.
    """

    def __init__(self, hessian: Array, held: NDArray[np.bool_]):
        self.hessian = hessian
        self.held = held

    def without_first(self) -> Quadratic:
        """The model in all parameters but the first, that one being fixed."""
        return Quadratic(self.hessian[1:, 1:], self.held[1:])

    @classmethod
    def by_differences(
        cls, function: Function, bounds: Sequence[tuple[float, float]], x: Array
    ) -> Quadratic | None:
        """The Hessian at ``x`` from ``p + 1`` gradients; None if it is not finite, or zero.

        Where the function is not convex its curvature counts by size, so that steps still go
        downhill. A parameter held at an end of its range stands apart from the others.
        """
        low, high = _ends(bounds)
        _, gradient = function(x)
        hessian = np.empty((len(x), len(x)))
        for i in range(len(x)):
            step = STEP if x[i] + STEP <= high[i] else -STEP
            moved = x.copy()
            moved[i] += step
            hessian[i] = (function(moved)[1] - gradient) / step
        hessian = 0.5 * (hessian + hessian.T)
        held = _held(x, gradient, low, high)
        hessian[held] = hessian[:, held] = 0.0
        hessian[held, held] = 1.0
        if not np.isfinite(hessian).all() or (len(x) > 0 and not hessian.any()):
            return None
        curvatures, directions = np.linalg.eigh(hessian)
        curvatures = np.abs(curvatures)
        curvatures = np.maximum(curvatures, FLATTEST * curvatures.max(initial=0.0))
        return cls((directions * curvatures) @ directions.T, held)

    def minimize(
        self,
        function: Function,
        bounds: Sequence[tuple[float, float]],
        x: Array,
        close: float = CLOSE,
    ) -> Array | None:
        """The minimum next to ``x``; None if Newton's steps do not reach it, or leave the model.

        Args:
            function: What is minimized.
            bounds: Ends of each parameter; one that wants to go beyond is held there.
            x: The start.
            close: Gain that the model must expect to go on.
        """
        low, high = _ends(bounds)
        x = np.clip(x, low, high)
        value, gradient = function(x)
        for _ in range(MAX_STEPS):
            if not np.isfinite(value):
                return None
            free = ~_held(x, gradient, low, high)
            if (free & self.held).any():
                return None
            newton = np.zeros_like(x)
            newton[free] = -np.linalg.solve(self.hessian[np.ix_(free, free)], gradient[free])
            if -0.5 * (gradient @ newton) < close and np.abs(newton).max(initial=0.0) < SHORT:
                return x
            newton /= max(1.0, np.abs(newton).max())
            for _ in range(HALVINGS):
                new = np.clip(x + newton, low, high)
                new_value, new_gradient = function(new)
                if new_value < value:
                    break
                newton *= 0.5
            else:
                return None
            self._update(new - x, new_gradient - gradient)
            x, value, gradient = new, new_value, new_gradient
        return None

    def _update(self, step: Array, change: Array) -> None:
        """BFGS, left out where the function is not convex along the step."""
        along = step @ change
        if along > 0:
            turned = self.hessian @ step
            self.hessian = (
                self.hessian
                + np.outer(change, change) / along
                - np.outer(turned, turned) / (step @ turned)
            )


def _ends(bounds: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    low, high = np.array(bounds, dtype=float).reshape(-1, 2).T
    return low, high


def _held(x: Array, gradient: Array, low: Array, high: Array) -> NDArray[np.bool_]:
    """Which parameters stand at an end of their range and would go beyond."""
    return ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
