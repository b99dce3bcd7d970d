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
        informative: Whether the outcome will enter the model. False only where a retention policy
            refuses it, such as :class:`tvbo.retention.EntropyThreshold`.
        information_gain: What the outcome is expected to tell of the function, in nats; None where
            no retention policy asks for it, or nothing is known of the noise yet.
        skipped: Whether the action need not be tried: it is not worth its evaluation. The trial is
            not open, and cannot be told.
    """

    id: int
    X: Tensor
    t: float
    context: Tensor | None = None
    informative: bool = True
    information_gain: float | None = None
    skipped: bool = False
