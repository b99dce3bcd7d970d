"""One question put to the world: an action, at a time, in a context."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Trial:
    """What ``ask`` gives and ``tell`` takes.

    Args:
        id: Number of the trial, from 1, unique within its optimizer.
        X: The action, ``1 x d``, float64.
        t: Time of the trial, in the user's unit: when it is sampled, not when its outcome arrives.
        context: ``c``-dimensional context, or None.
    """

    id: int
    X: Tensor
    t: float
    context: Tensor | None = None
