"""What :class:`tvbo.retention.StaleCutoff` can change of a posterior."""

from __future__ import annotations

import math
from typing import NamedTuple


class StaleErrorBound(NamedTuple):
    """Largest effect of :class:`StaleCutoff` on the posterior at one action."""

    variance_growth: float
    """Largest increase of the posterior variance, in squared units of the reward."""

    mean_shift: float
    """Largest root mean square shift of the posterior mean, in units of the reward, over functions
    and outcomes drawn from the model."""


def stale_error_bound(tol: float, prior_variance: float = 1.0) -> StaleErrorBound:
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
        tol: Largest weight of a discarded observation.
        prior_variance: The largest prior variance :math:`v`, in squared units of the reward.

    Raises:
        ValueError: if ``prior_variance`` is not positive and finite.
    """
    if not 0 < prior_variance < math.inf:
        raise ValueError(f"Expected prior_variance > 0 and finite. Got {prior_variance}.")
    growth = tol * prior_variance
    return StaleErrorBound(variance_growth=growth, mean_shift=math.sqrt(growth))
