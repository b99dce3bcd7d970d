"""The two parts of retention: which observations stay, which outcomes are admitted."""

from __future__ import annotations

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.observations import Observations
from tvbo.retention.prediction import Prediction, Rejection


class Retention:
    """Base class of retention policies: which observations stay in the model.

    A policy that also decides which outcomes are admitted to the model is an :class:`Admission`.
    Policies are joined by ``&``, filters and admissions alike: an observation stays if all of them
    keep it, and an outcome enters if all of them admit it.
    """

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return a mask, ``n``, over the observations: True stays, False is dropped for good.

        It has no side effects, since a recommendation calls it as well as an ask. By default all
        observations stay.

        Args:
            observations: The observations held; the last column of X is time.
            model: The model of the previous round, None in the first round.
            t: The present time.
        """
        return torch.ones(len(observations), dtype=torch.bool)

    @property
    def admission(self) -> Admission | None:
        """The part that decides which outcomes are admitted; None admits all of them.

        Where it is None, no prediction is computed for a chosen action.
        """
        return None

    def __and__(self, other: Retention) -> Chain:
        """Join two policies."""
        return Chain(self, other)


class Admission(Retention):
    """Base class of retention policies that decide which outcomes are admitted to the model.

    The optimizer computes a prediction for each chosen action, calls :meth:`admit` with it, and
    :meth:`observe_outcome` once the outcome is told. By default all observations stay.
    """

    @property
    def admission(self) -> Admission | None:
        """The policy itself."""
        return self

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Return None to admit the outcome of a chosen action, else why it is rejected.

        By default every outcome is admitted.

        Args:
            prediction: The model's prediction for the action.
            num_held: Number of observations held.
        """
        return None

    def observe_outcome(self, prediction: Prediction, Y: float) -> None:
        """Update the policy with an outcome, whether or not it enters the model.

        Args:
            prediction: The model's prediction when the action was chosen.
            Y: The outcome.
        """


class Chain(Admission):
    """Several policies in sequence: each is shown what those before it kept.

    So a size limit that comes last counts what is left. ``Reset(50) & EntropyThreshold(0.1)`` is
    the same as ``Chain(Reset(50), EntropyThreshold(0.1))``. The ``floor`` of one policy does not
    restrict the others: a limit or a window may drop observations below it.

    Args:
        policies: In order; chains among them are flattened.

    Raises:
        ValueError: if there are none, or the floor of one is above the limit of another.
        TypeError: if one is no retention policy.
    """

    policies: tuple[Retention, ...]

    def __init__(self, *policies: Retention) -> None:
        flat: list[Retention] = []
        for policy in policies:
            if not isinstance(policy, Retention):
                raise TypeError(
                    f"Expected retention policies. Got {policy!r} of {type(policy).__name__}."
                )
            flat += policy.policies if isinstance(policy, Chain) else [policy]
        if not flat:
            raise ValueError("Expected one retention policy or more. Got none.")
        self.policies = tuple(flat)
        floor = max(getattr(policy, "floor", 0) for policy in flat)
        limit = min(getattr(policy, "limit", floor) for policy in flat)
        if floor > limit:
            raise ValueError(
                f"Expected a floor of at most limit={limit}, the number that may be held. "
                f"Got floor={floor}."
            )

    @property
    def admission(self) -> Admission | None:
        """The chain itself if one of its policies decides on outcomes, else None."""
        return self if self._admissions else None

    @property
    def _admissions(self) -> list[Admission]:
        parts = [policy.admission for policy in self.policies]
        return [part for part in parts if part is not None]

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations that all policies keep."""
        kept = torch.ones(len(observations), dtype=torch.bool)
        for policy in self.policies:
            part = policy.keep(observations[kept], model, t)
            kept[kept.clone()] = part
        return kept

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Return the first rejection that skips the evaluation, else the first one, else None."""
        answers = [part.admit(prediction, num_held) for part in self._admissions]
        rejections = [answer for answer in answers if answer is not None]
        return min(rejections, key=lambda rejection: not rejection.skip, default=None)

    def observe_outcome(self, prediction: Prediction, Y: float) -> None:
        """Update each policy that decides on outcomes."""
        for part in self._admissions:
            part.observe_outcome(prediction, Y)

    def __repr__(self) -> str:
        return " & ".join(repr(policy) for policy in self.policies)
