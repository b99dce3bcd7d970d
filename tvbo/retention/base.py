"""Retention: which observations stay, which outcomes are admitted; the policies by time alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.retention.prediction import Prediction, Rejection
from tvbo.spaces.observations import Observations


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
            observations: The observations held, one or more; the last column of X is time.
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
            kept[kept.clone()] = mask_of(policy, observations[kept], model, t)
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
        _check_positive("every", self.every)

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
        _check_positive("length", self.length)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations no older than ``length``."""
        return t - observations.X[:, -1] <= self.length


class StaleErrorBound(NamedTuple):
    """Largest effect of :class:`StaleCutoff` on the posterior at one action."""

    variance_growth: float
    """Largest increase of the posterior variance, in squared units of the reward."""

    mean_shift: float
    """Largest root mean square shift of the posterior mean, in units of the reward, over functions
    and outcomes drawn from the model."""


@dataclass(frozen=True)
class StaleCutoff(Retention):
    r"""Discard observations whose weight under the drift is at most ``tol``.

    An observation of age :math:`a` has weight :math:`w = (1 - \varepsilon)^a`, the squared
    correlation of the function at its time with the present. The error is bounded by
    :meth:`error_bound`: no posterior variance grows by more than the share ``tol`` of the prior
    variance, and a dense posterior mean moves by at most :math:`\sqrt{\text{tol}}` prior standard
    deviations in root mean square. The mean of a streaming model, a running sum, does not change
    when an observation is dropped.

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
        if not 0 < self.tol < 1:
            raise ValueError(f"Expected tol in (0, 1). Got {self.tol}.")

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations whose weight exceeds ``tol``."""
        age = t - observations.X[:, -1]
        rate = torch.as_tensor(self.forgetting_rate, dtype=age.dtype)
        # Accurate for a small ε, and 1 at age 0 also where ε = 1.
        weight: Tensor = torch.special.xlog1py(age, -rate).exp()
        return weight > self.tol

    def error_bound(self, prior_variance: float = 1.0) -> StaleErrorBound:
        r"""Return a bound on the difference from the posterior of all observations, now or later.

        Where :math:`v = k(x, x)`, with :math:`A` kept and :math:`B` dropped,

        .. math:: 0 \le \mathrm{Var}[f_t(x) \mid A] - \mathrm{Var}[f_t(x) \mid A, B]
            = \mathrm{E}\big[(\mu_{AB}(x) - \mu_A(x))^2\big] \le \text{tol} \cdot v.

        The equality is the law of total variance, so the shift of the mean is bounded on average
        over the model, not for each data set: outcomes that are improbable under the model can
        move it further. The inequality is attained by a noise-free outcome at ``x`` itself, of
        weight ``tol``, if no other observation is kept.

        The bound holds if the kernel is one over actions and contexts times
        :math:`(1-\varepsilon)^{|\Delta t|/2}` with this ε or a larger one, the kept observations
        are newer than the dropped ones, which is so by construction, and none of them is later
        than ``t``.

        *Proof.* Let ``s`` be the newest dropped time, :math:`\phi = (1-\varepsilon)^{(t-s)/2}`. On
        the rows concerned, :math:`f_u(x) = q(x)^\top z_u`, with :math:`\|q(x)\|^2 = v` and
        independent processes in the coordinates of :math:`z`, each of variance 1 and correlation as
        in time. Given :math:`z_s`, ``B`` adds no information, so the growth is at most
        :math:`q^\top (P - R) q`, with :math:`P` and :math:`R` the covariances of :math:`z_t` after
        filtering ``A`` from :math:`z_s` unknown and known. The difference of two solutions of a
        Riccati equation is :math:`P - R = \Phi_P \Phi_R^\top`, where :math:`\Phi_P` is :math:`\phi`
        times the product over the steps of :math:`P_j (\phi_j^2 P_{j-1} + (1 - \phi_j^2) I)^{-1}`.
        After regrouping, each :math:`(\phi_j^2 P_{j-1} + (1 - \phi_j^2) I)^{-1} P_{j-1}` has norm
        at most 1, since :math:`P_{j-1} \le I`; so :math:`\|\Phi_P\| \le \phi`. The same with
        :math:`R_j \le (1 - (1-\varepsilon)^{t_j - s}) I`, whose factors telescope, gives
        :math:`\|\Phi_R\| \le \phi`. Hence :math:`P - R \le \phi^2 I`.

        Args:
            prior_variance: The largest prior variance :math:`v`, in squared units of the reward.

        Raises:
            ValueError: if ``prior_variance`` is not positive and finite.
        """
        if not 0 < prior_variance < math.inf:
            raise ValueError(f"Expected prior_variance > 0 and finite. Got {prior_variance}.")
        growth = self.tol * prior_variance
        return StaleErrorBound(variance_growth=growth, mean_shift=math.sqrt(growth))


def _check_positive(name: str, value: float) -> None:
    if not (0 < value < math.inf):
        raise ValueError(f"Expected {name} > 0, in units of time. Got {value}.")
