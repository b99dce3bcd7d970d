"""One question put to the world: an action, at a time, in a context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
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

    def asks_the_same(self, other: Trial) -> bool:
        """Whether another trial has the same action, time and context."""
        if self.context is None or other.context is None:
            same_context = self.context is other.context
        else:
            same_context = torch.equal(self.context, other.context)
        return self.t == other.t and same_context and torch.equal(self.X, other.X)

    def to_row(self) -> dict[str, float]:
        """Its number, time, action and context, by column of a table."""
        row = {"trial": self.id, "t": self.t}
        row |= {f"action_{i}": x for i, x in enumerate(self.X[0].tolist())}
        if self.context is not None:
            row |= {f"context_{i}": z for i, z in enumerate(self.context.tolist())}
        return row
