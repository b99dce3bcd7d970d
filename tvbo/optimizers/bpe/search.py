"""A smooth function climbed within a box and constraints, from a point that meets them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

STEPS = 20
"""Steps of a search at most: it starts from the best of many points, and need not be exact."""

Smooth = Callable[[Tensor], Tensor]
"""Values, ``m``, at rows ``m x d``, with gradients."""


def climb(start: Tensor, box: Tensor, value: Smooth, constraints: Sequence[Smooth]) -> Tensor:
    """A point near ``start`` where ``value`` is larger; by SLSQP, in a box scaled to one.

    The point may break a constraint by a little: whoever wants none broken has to check.

    Args:
        start: ``1 x d``.
        box: ``2 x d``, lower then upper.
        value: To be made large.
        constraints: To be kept at least 0.

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
    """Value and gradient at a point of the unit box."""

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        result = sign * function((lower + x * span).unsqueeze(0)).squeeze(0)
        if not result.requires_grad:
            return result.item(), np.zeros_like(point)
        (gradient,) = torch.autograd.grad(result, x)
        return result.item(), gradient.numpy()

    return at
