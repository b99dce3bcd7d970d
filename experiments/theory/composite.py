r"""Information gain and regret with contexts (Krause, Ong, 2011).

:math:`\gamma(T; k; V)` is the maximum information gain of ``T`` noisy values of a GP with kernel
``k`` over ``V``, (13) of Bogunovic et al. (2016). Section 5.2 bounds it for kernels composed of one
over actions, :math:`k_S`, and one over contexts, :math:`k_Z`.

**Sets or sequences.** The paper prints a maximum over *sets* of at most ``T`` points. Here, as in
:func:`greedy_information_gain`, it is over *sequences* of ``T`` points, in which a
point may be repeated, as in a bandit; the proof of Theorem 1 needs that where pairs recur. For
sequences Theorems 2 and 3 are true, even without their terms in :math:`\log T`; the functions
return the bounds as printed. For sets of distinct points both are false as printed. Consider ``n``
independent arms and irrelevant contexts, :math:`k_Z = 1`: with new contexts every arm can be
observed again, whereas :math:`\gamma(T; k_S; S)` allows one observation of each. The gain is
:math:`\tfrac n2 \log(1 + T / n\sigma^2)`; Theorem 2 says at most :math:`\tfrac n2 \log(1 +
\sigma^{-2}) + \log T`. Numbers for both theorems are in ``test_composite.py``. The
error is in the proof of Theorem 2: it keeps a single :math:`\log T` where each eigenvalue of
:math:`K_S` has one. For sets the proof gives :math:`d\,\gamma + \tfrac d2 \min(T,
\operatorname{rank} k_S) \log T`.

Proof for sequences. Over any sequence :math:`K_Z = \sum_{j \le d} u_j u_j^\top`, where the entries
of :math:`u_j` are at most 1 in absolute value if :math:`k_Z(z, z) \le 1`. So :math:`K_S \circ K_Z =
\sum_j D_j K_S D_j` with :math:`D_j = \operatorname{diag}(u_j)`. As :math:`\det(I + A + B) \le
\det(I + A) \det(I + B)` for semi-definite matrices and :math:`D_j^2 \le I`, its information is at
most ``d`` times that of :math:`K_S`. The determinant inequality alone gives Theorem 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from experiments.theory.information import checked_covariance
from experiments.theory.regret_bounds import DISCRETIZATION_REGRET
from tvbo.values import check_count, check_not_negative, check_positive


def product_covariance(action_covar: Tensor, context_covar: Tensor) -> Tensor:
    r"""Return the covariance of all pairs under :math:`k_S \otimes k_Z`.

    Krause and Ong (2011), Section 5.1.

    Args:
        action_covar: ``n x n``, the covariance of the actions.
        context_covar: ``m x m``, the covariance of the contexts.

    Returns:
        ``nm x nm``, float64. Row ``i * m + j`` is action ``i`` in context ``j``. The structure
        ``"both"`` of :class:`tvbo.kernels.ContextActionKernel` is the sum of this and
        :func:`additive_covariance`, each of scaled matrices.

    Raises:
        ValueError: if an argument is not a symmetric, finite matrix.
    """
    return torch.kron(_one_matrix(action_covar), _one_matrix(context_covar))


def additive_covariance(action_covar: Tensor, context_covar: Tensor) -> Tensor:
    r"""Return the covariance of all pairs under :math:`k_S \oplus k_Z`.

    Krause and Ong (2011), Section 5.1.

    Args:
        action_covar: ``n x n``, the covariance of the actions.
        context_covar: ``m x m``, the covariance of the contexts.

    Returns:
        ``nm x nm``, float64, rows as in :func:`product_covariance`.

    Raises:
        ValueError: if an argument is not a symmetric, finite matrix.
    """
    action_covar, context_covar = _one_matrix(action_covar), _one_matrix(context_covar)
    of_actions = torch.kron(action_covar, torch.ones_like(context_covar))
    return of_actions + torch.kron(torch.ones_like(action_covar), context_covar)


def product_information_gain(*, horizon: int, rank: int, factor_gain: float) -> float:
    r"""Return a bound on the gain of a product kernel (Krause, Ong, 2011, Theorem 2).

    .. math:: \gamma(T; k_S \otimes k_Z; X) \le d\,\gamma(T; k_S; S) + d \log T

    ``d`` is the rank of :math:`k_Z`: the number of contexts, of features if it is linear, or the
    rank of the inter-task covariance. The roles may be exchanged. The bound requires
    :math:`k_Z(z, z) \le 1`, which is stated in the proof, not in the theorem. It is returned as
    printed; for sequences with repeated points, as here, it holds without :math:`d \log T` as well,
    and for sets of distinct points it is false.

    Args:
        horizon: T, in rounds.
        rank: Rank ``d`` of the other factor.
        factor_gain: :math:`\gamma(T; k_S; S)` over sequences of points, or an upper bound, in nats,
            such as :attr:`InformationGain.ceiling`.

    Returns:
        Nats.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, rank=rank)
    check_not_negative(factor_gain=factor_gain)
    return rank * (factor_gain + math.log(horizon))


def additive_information_gain(*, horizon: int, action_gain: float, context_gain: float) -> float:
    r"""Return a bound on the gain of an additive kernel (Krause, Ong, 2011, Theorem 3).

    .. math:: \gamma(T; k_S \oplus k_Z; X) \le \gamma(T; k_S; S) + \gamma(T; k_Z; Z) + 2 \log T

    The bound is returned as printed; for sequences with repeated points, as here, it holds without
    :math:`2 \log T` as well and for kernels of any scale, and for sets of distinct points it is
    false.

    Args:
        horizon: T, in rounds.
        action_gain: :math:`\gamma(T; k_S; S)` over sequences of points, or an upper bound, in nats.
        context_gain: :math:`\gamma(T; k_Z; Z)` over sequences of points, or an upper bound, in
            nats.

    Returns:
        Nats.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(action_gain=action_gain, context_gain=context_gain)
    return action_gain + context_gain + 2 * math.log(horizon)


def cgp_ucb_regret_bound(
    *,
    horizon: int,
    beta: float,
    information_gain: float,
    noise_variance: float,
    prior_variance: float = 1.0,
) -> float:
    r"""Return the bound on the contextual regret of CGP-UCB (Krause, Ong, 2011, Theorem 1).

    .. math:: R_T \le \sqrt{C_1 T \beta_T \gamma_T} + 2, \quad C_1 = 8 / \log(1+\sigma^{-2})

    Regret is relative to the best action for the context of each round. The + 2 accounts for the
    discretization of a compact set; in settings 1 and 3, with ``FiniteBeta``
    or ``RKHSBeta``, the bound holds without it.

    The paper assumes :math:`k(x, x) \le 1`; the sum of two unit kernels has 2. With
    :math:`k(x, x) \le v` the same proof gives :math:`C_1 = 8 v / \log(1 + v \sigma^{-2})`.

    Args:
        horizon: T, in rounds.
        beta: :math:`\beta_T` of the setting; by ``FiniteBeta``,
            ``CompactBeta`` or ``RKHSBeta``.
        information_gain: :math:`\gamma_T` over pairs, or an upper bound, in nats.
        noise_variance: σ² > 0, in squared units of the reward.
        prior_variance: ``v``, the largest :math:`k(x, x)`, in the same unit. Setting 3 requires 1.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(beta=beta, information_gain=information_gain)
    check_positive(noise_variance=noise_variance, prior_variance=prior_variance)
    constant = 8 * prior_variance / math.log1p(prior_variance / noise_variance)
    return math.sqrt(constant * horizon * beta * information_gain) + DISCRETIZATION_REGRET


def _one_matrix(covar: Tensor) -> Tensor:
    covar = checked_covariance(covar)
    if covar.dim() != 2:
        raise ValueError(f"Expected one covariance, n x n. Got {tuple(covar.shape)}.")
    return covar
