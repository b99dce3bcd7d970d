"""Several policies at once."""

from __future__ import annotations

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.observations import Observations
from tvbo.retention.base import Prediction, Refusal, Retention


class Chain(Retention):
    """Policies one after another: each sees what those before it kept.

    So a size limit that comes last counts what is left. ``Reset(50) & EntropyThreshold(0.1)`` is
    the same as ``Chain(Reset(50), EntropyThreshold(0.1))``. The floor of one policy binds no other:
    a limit or a window may drop below it.

    Args:
        policies: In order; chains among them are unrolled.

    Raises:
        ValueError: if there are none, or the floor of one is above the limit of another.
        TypeError: if one is no retention policy.
    """

    def __init__(self, *policies: Retention):
        unrolled: list[Retention] = []
        for policy in policies:
            if not isinstance(policy, Retention):
                raise TypeError(
                    f"Expected retention policies. Got {policy!r} of {type(policy).__name__}."
                )
            unrolled += policy.policies if isinstance(policy, Chain) else [policy]
        if not unrolled:
            raise ValueError("Expected one retention policy or more. Got none.")
        self.policies = tuple(unrolled)
        floor = max(getattr(policy, "floor", 0) for policy in unrolled)
        limit = min(getattr(policy, "limit", floor) for policy in unrolled)
        if floor > limit:
            raise ValueError(
                f"Expected a floor of at most limit={limit}, the number that may be held. "
                f"Got floor={floor}."
            )

    @property
    def needs_prediction(self) -> bool:
        """Whether any of them does."""
        return any(policy.needs_prediction for policy in self.policies)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for what all of them keep."""
        kept = torch.ones(len(observations), dtype=torch.bool)
        for policy in self.policies:
            part = policy.keep(observations[kept], model, t)
            kept[kept.clone()] = part
        return kept

    def judge(self, prediction: Prediction, num_held: int) -> Refusal | None:
        """The first refusal that spares the evaluation; else the first one."""
        verdicts = [policy.judge(prediction, num_held) for policy in self.policies]
        refusals = [verdict for verdict in verdicts if verdict is not None]
        return min(refusals, key=lambda refusal: not refusal.skip, default=None)

    def learn(self, prediction: Prediction, Y: float) -> None:
        """Each takes note."""
        for policy in self.policies:
            policy.learn(prediction, Y)

    def __repr__(self) -> str:
        return " & ".join(repr(policy) for policy in self.policies)
