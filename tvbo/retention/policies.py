"""Retention policies that depend on time alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.kernels import temporal_correlation
from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.observations import Observations
from tvbo.retention.base import Retention


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
        return temporal_correlation(age, rate).square() > self.tol

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
