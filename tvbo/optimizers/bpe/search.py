"""Constrained local maximization of a smooth function in a box."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

STEPS = 20
"""Largest number of SLSQP iterations; the start is the best of many points already."""

Smooth = Callable[[Tensor], Tensor]
"""Map from rows ``m x d`` to values ``m``, differentiable by autograd."""


def climb(start: Tensor, box: Tensor, value: Smooth, constraints: Sequence[Smooth]) -> Tensor:
    """Maximize ``value`` locally by SLSQP, in coordinates scaled to the unit box.

    The result may violate a constraint slightly; the caller has to check it.

    Args:
        start: Start, ``1 x d``, which satisfies the constraints.
        box: Bounds, ``2 x d``, lower then upper.
        value: Function to be maximized.
        constraints: Functions to be kept at least 0.

    Returns:
        ``1 x d``, within the box.
    """
    lower, span = box[0], box[1] - box[0]
    objective = _scaled(value, lower, span, sign=-1.0)
    within = [_scaled(constraint, lower, span) for constraint in constraints]
    with warnings.catch_warnings():
        # SLSQP steps out of the bounds by rounding, and is set back there.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = minimize(
            objective,
            ((start[0] - lower) / span).numpy(),
            jac=True,
            bounds=[(0.0, 1.0)] * len(span),
            constraints=[
                {"type": "ineq", "fun": lambda x, c=c: c(x)[0], "jac": lambda x, c=c: c(x)[1]}
                for c in within
            ],
            method="SLSQP",
            options={"maxiter": STEPS},
        )
    point = torch.from_numpy(found.x).nan_to_num(0.5).clamp(0, 1)
    return (lower + point * span).clamp(*box).unsqueeze(0)


def _scaled(
    function: Smooth, lower: Tensor, span: Tensor, sign: float = 1.0
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return the function of a point of the unit box that has value and gradient, for SciPy."""

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        result = sign * function((lower + x * span).unsqueeze(0)).squeeze(0)
        if not result.requires_grad:
            return result.item(), np.zeros_like(point)
        (gradient,) = torch.autograd.grad(result, x)
        return result.item(), gradient.numpy()

    return at
