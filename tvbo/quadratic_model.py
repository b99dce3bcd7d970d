"""A quadratic model of a function, and Newton's method with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Function = Callable[[Array], tuple[float, Array]]
"""A function that returns its value and its gradient."""

STEP = 1e-3
"""Step of the differences that give a Hessian; parameters are logarithms or of the order of one."""

CLOSE = 1e-8
"""Gain, in nats, that the quadratic model must expect less than at a minimum."""

SHORT = 1e-2
"""Length of a step, in every parameter, below which a minimum is reached: where a function is flat,
as in the logarithm of a very small noise variance, a long step may gain more than expected."""

FLATTEST = 1e-8
"""Smallest curvature of a model, as a share of the largest."""

MAX_STEPS, HALVINGS = 20, 5
"""Maximum number of steps, each at most one in every parameter, and of halvings of a step that
increases the function. If they are exceeded, the start was not near a minimum."""


@dataclass(eq=False)
class QuadraticModel:
    """The Hessian of a function, updated by BFGS with every step.

    Args:
        hessian: ``p x p``.
        held: Which of the ``p`` parameters were at a bound that a descent would cross; the model
            has no information on them.
    """

    hessian: Array
    held: NDArray[np.bool_]

    @classmethod
    def by_differences(
        cls, function: Function, bounds: Sequence[tuple[float, float]], x: Array
    ) -> QuadraticModel | None:
        """Build a model at ``x`` from ``p + 1`` gradients; None if it is not finite, or zero.

        Negative curvatures are replaced by their absolute values, so that steps still decrease the
        function. A parameter at a bound has no second derivatives with the others.

        Args:
            function: The function to be minimized.
            bounds: Lower and upper bound of each parameter.
            x: The point.
        """
        low, high = np.array(bounds, dtype=float).reshape(-1, 2).T
        steps = np.where(x + STEP <= high, STEP, -STEP)
        moved = [function(point)[1] for point in x + np.diag(steps)]
        # Last, where a search begins.
        _, gradient = function(x)
        hessian = (np.reshape(moved, (len(x), len(x))) - gradient) / steps[:, None]
        hessian = 0.5 * (hessian + hessian.T)
        # At a bound that a descent would cross.
        held = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
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
        """Return the minimum next to ``x``; None if Newton's steps do not reach it.

        Args:
            function: The function to be minimized.
            bounds: Lower and upper bound of each parameter.
            x: The start.
            close: Expected gain below which to stop.
        """
        low, high = np.array(bounds, dtype=float).reshape(-1, 2).T
        x = np.clip(x, low, high)
        value, gradient = function(x)
        for _ in range(MAX_STEPS):
            if not np.isfinite(value):
                return None
            free = ((x > low) | (gradient <= 0)) & ((x < high) | (gradient >= 0))
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
            step, change = new - x, new_gradient - gradient
            along = step @ change
            if along > 0:
                # BFGS, where the function is convex along the step.
                turned = self.hessian @ step
                self.hessian = (
                    self.hessian
                    + np.outer(change, change) / along
                    - np.outer(turned, turned) / (step @ turned)
                )
            x, value, gradient = new, new_value, new_gradient
        return None
