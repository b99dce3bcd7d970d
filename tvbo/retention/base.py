"""Retention: which observations stay, which outcomes are admitted; the policies by time alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.spaces.observations import Observations
from tvbo.values import check_positive, check_probability


@dataclass(frozen=True)
class Prediction:
    r"""The model's prediction for a chosen action, made before its outcome is known.

    Args:
        t: Time of the action.
        mean: Posterior mean :math:`\mu` of the function there.
        variance: Posterior variance :math:`\sigma_D^2` of the function, without noise.
        noise_variance: Variance :math:`\sigma^2` of the noise in an outcome.
        trial_id: Id of the trial, in the order of choosing.
    """

    t: float
    mean: float
    variance: float
    noise_variance: float
    trial_id: int = 0

    @property
    def information_gain(self) -> float:
        r"""Expected information gain :math:`\tfrac{1}{2}\log(1 + \sigma_D^2 / \sigma^2)` in nats.

        The conditional entropy of the outcome minus the entropy of the noise. Infinite where the
        noise variance is 0 and the posterior variance is not.
        """
        if self.noise_variance == 0:
            return math.inf if self.variance > 0 else 0.0
        return 0.5 * math.log1p(self.variance / self.noise_variance)


@dataclass(frozen=True)
class Rejection:
    """Why an outcome will not enter the model.

    Args:
        reason: The reason as text, with its numbers.
        skip: Whether the action need not be evaluated at all.
    """

    reason: str
    skip: bool


class Retention:
    """Base class of retention policies: which observations stay in the model.

    A policy that also decides which outcomes are admitted to the model is an :class:`Admission`.
    Policies are joined by ``&``, filters and admissions alike: an observation stays if all of them
    keep it, and an outcome enters if all of them admit it.
    """

    needs_prediction: bool = False
    """Whether the optimizer predicts the outcome of each chosen action, for :meth:`admit` and
    :meth:`observe_outcome`."""

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return a mask, ``n``, over the observations: True stays, False is dropped for good.

        It has no side effects, since a recommendation calls it as well as an ask. By default all
        observations stay.

        Args:
            observations: The observations held, one or more; the last column of X is time.
            model: The model of the previous round, None in the first round.
            t: The present time.
        """
        return torch.ones(len(observations), dtype=torch.bool)

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

    def state_dict(self) -> dict[str, Any]:
        """Return what the policy has learned, in types of JSON; by default nothing.

        A policy that learns from outcomes defines this and :meth:`load_state_dict`, so that a
        recorded run can be continued.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""

    def __and__(self, other: Retention) -> Chain:
        """Join two policies."""
        return Chain(self, other)


def mask_of(policy: Retention, observations: Observations, model: Model | None, t: float) -> Tensor:
    """Return the mask of a policy, which is not asked where there are no observations.

    Raises:
        TypeError: if it is no boolean tensor.
        ValueError: if it has another shape than ``n``.
    """
    if len(observations) == 0:
        return torch.ones(0, dtype=torch.bool)
    mask: object = policy.keep(observations, model, t)
    expected = f"Expected a boolean mask of shape ({len(observations)},)"
    source = f"from {type(policy).__name__}.keep"
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{expected}. Got {kind} {source}.")
    if mask.shape != (len(observations),):
        raise ValueError(f"{expected}. Got shape {tuple(mask.shape)} {source}.")
    return mask


class Admission(Retention):
    """Base class of retention policies that decide which outcomes are admitted to the model.

    The optimizer computes a prediction for each chosen action, calls ``admit`` with it, and
    ``observe_outcome`` once the outcome is observed. By default all observations stay.
    """

    needs_prediction = True


class Chain(Retention):
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

    def state_dict(self) -> dict[str, Any]:
        """Return what each policy has learned, by its place."""
        return {str(i): policy.state_dict() for i, policy in enumerate(self.policies)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        for i, policy in enumerate(self.policies):
            policy.load_state_dict(state[str(i)])

    @property
    def needs_prediction(self) -> bool:  # type: ignore[override]  # By what it is made of.
        """Whether one of its policies decides on outcomes."""
        return any(policy.needs_prediction for policy in self.policies)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations that all policies keep."""
        kept = torch.ones(len(observations), dtype=torch.bool)
        for policy in self.policies:
            kept[kept.clone()] = mask_of(policy, observations[kept], model, t)
        return kept

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Return the first rejection that skips the evaluation, else the first one, else None."""
        answers = [policy.admit(prediction, num_held) for policy in self.policies]
        rejections = [answer for answer in answers if answer is not None]
        return min(rejections, key=lambda rejection: not rejection.skip, default=None)

    def observe_outcome(self, prediction: Prediction, Y: float) -> None:
        """Update each policy."""
        for policy in self.policies:
            policy.observe_outcome(prediction, Y)

    def __repr__(self) -> str:
        return " & ".join(repr(policy) for policy in self.policies)


@dataclass(frozen=True)
class KeepAll(Retention):
    """Keep every observation."""


@dataclass(frozen=True)
class Reset(Retention):
    """Discard all observations every ``every`` units of time (R-GP-UCB).

    Bogunovic et al. (2016), Algorithm 1. With times ``t = 1, 2, ...`` the model is reset where ``t
    mod N = 1``: the blocks are ``1..N``, ``N+1..2N`` and so on.

    Args:
        every: Block length N, in units of time.
        start: Time at which the first block begins.

    Raises:
        ValueError: if ``every`` is not positive and finite.
    """

    every: float
    start: float = 1.0

    def __post_init__(self) -> None:
        check_positive(every=self.every)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations in the block of ``t``."""
        times = torch.cat([observations.X[:, -1], observations.X.new_tensor([t])])
        blocks = torch.floor((times - self.start) / self.every)
        return blocks[:-1] == blocks[-1]


@dataclass(frozen=True)
class SlidingWindow(Retention):
    """Keep the observations of the last ``length`` units of time.

    Args:
        length: An observation of age ``t - t_i <= length`` stays.

    Raises:
        ValueError: if ``length`` is not positive and finite.
    """

    length: float

    def __post_init__(self) -> None:
        check_positive(length=self.length)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations no older than ``length``."""
        return t - observations.X[:, -1] <= self.length


@dataclass(frozen=True)
class StaleCutoff(Retention):
    r"""Discard observations whose weight under the drift is at most ``tol``.

    An observation of age :math:`a` has weight :math:`w = (1 - \varepsilon)^a`, the squared
    correlation of the function at its time with the present. No posterior variance grows by more
    than the share ``tol`` of the prior variance, and a dense posterior mean moves by at most
    :math:`\sqrt{\text{tol}}` prior standard deviations in root mean square. The mean of a
    streaming model, a running sum, does not change when an observation is dropped.

    Args:
        forgetting_rate: ε per unit of time, in [0, 1]; 0 keeps all observations.
        tol: Largest weight of a discarded observation.

    Raises:
        ValueError: if an argument is out of range.
    """

    forgetting_rate: float
    tol: float = 1e-12

    def __post_init__(self) -> None:
        check_forgetting_rate(self.forgetting_rate)
        check_probability(tol=self.tol)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations whose weight exceeds ``tol``."""
        age = t - observations.X[:, -1]
        rate = torch.as_tensor(self.forgetting_rate, dtype=age.dtype)
        # Accurate for a small ε, and 1 at age 0 also where ε = 1.
        weight: Tensor = torch.special.xlog1py(age, -rate).exp()
        return weight > self.tol
