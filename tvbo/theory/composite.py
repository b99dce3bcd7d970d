r"""What is to be learned about actions and contexts together (Krause, Ong, 2011).

:math:`\gamma(T; k; V)` is the most that ``T`` noisy values of a GP with kernel ``k`` over ``V`` can
tell, (13) of Bogunovic et al. (2016). Section 5.2 bounds it for kernels composed of one over
actions, :math:`k_S`, and one over contexts, :math:`k_Z`.

**Sets or sequences.** The paper prints a maximum over *sets* of at most ``T`` points. Here, as in
:func:`tvbo.theory.greedy_information_gain`, it is over *sequences* of ``T`` points: one may come
again, as it may in a bandit, and the proof of Theorem 1 needs that where pairs recur. For
sequences Theorems 2 and 3 are true, even without their terms in :math:`\log T`; the functions
return the bounds as printed. For sets of distinct points both are false as printed. Take ``n``
unrelated arms and contexts that do not matter, :math:`k_Z = 1`: new contexts let every arm be tried
again, where :math:`\gamma(T; k_S; S)` allows but one try of each. The gain is
:math:`\tfrac n2 \log(1 + T / n\sigma^2)`; Theorem 2 says at most
:math:`\tfrac n2 \log(1 + \sigma^{-2}) + \log T`. Numbers for both theorems are in
``tests/theory/test_composite.py``. The slip is in the proof of Theorem 2: of one :math:`\log T` for
each eigenvalue of :math:`K_S` it keeps one. For sets it proves
:math:`d\,\gamma + \tfrac d2 \min(T, \operatorname{rank} k_S) \log T`.

Proof for sequences. Over any sequence :math:`K_Z = \sum_{j \le d} u_j u_j^\top`, where no entry of
:math:`u_j` is above 1 in size if :math:`k_Z(z, z) \le 1`. So :math:`K_S \circ K_Z =
\sum_j D_j K_S D_j` with :math:`D_j = \operatorname{diag}(u_j)`. As :math:`\det(I + A + B) \le
\det(I + A) \det(I + B)` for semi-definite matrices and :math:`D_j^2 \le I`, its information is at
most that of :math:`K_S`, ``d`` times. The first of these facts alone gives Theorem 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tvbo.theory.arguments import check_count, check_not_negative, check_positive
from tvbo.theory.information import checked_covariance
from tvbo.theory.regret_bounds import DISCRETIZATION_REGRET


def product_covariance(action_covar: Tensor, context_covar: Tensor) -> Tensor:
    r"""Covariance of all pairs under :math:`k_S \otimes k_Z` (Krause, Ong, 2011, Section 5.1).

    Args:
        action_covar: ``n x n``, of the actions.
        context_covar: ``m x m``, of the contexts.

    Returns:
        ``nm x nm``, float64. Row ``i * m + j`` is action ``i`` in context ``j``. The structure
        ``"both"`` of :class:`tvbo.kernels.ContextActionKernel` is the sum of this and
        :func:`additive_covariance`, each of matrices with their scales.

    Raises:
        ValueError: if an argument is no symmetric, finite matrix.
    """
    return torch.kron(_one_matrix(action_covar), _one_matrix(context_covar))


def additive_covariance(action_covar: Tensor, context_covar: Tensor) -> Tensor:
    r"""Covariance of all pairs under :math:`k_S \oplus k_Z` (Krause, Ong, 2011, Section 5.1).

    Args:
        action_covar: ``n x n``, of the actions.
        context_covar: ``m x m``, of the contexts.

    Returns:
        ``nm x nm``, float64, rows as in :func:`product_covariance`.

    Raises:
        ValueError: if an argument is no symmetric, finite matrix.
    """
    action_covar, context_covar = _one_matrix(action_covar), _one_matrix(context_covar)
    alike = torch.kron(action_covar, torch.ones_like(context_covar))
    return alike + torch.kron(torch.ones_like(action_covar), context_covar)


def product_information_gain(*, horizon: int, rank: int, factor_gain: float) -> float:
    r"""The gain of a product kernel by that of one factor (Krause, Ong, 2011, Theorem 2).

    .. math:: \gamma(T; k_S \otimes k_Z; X) \le d\,\gamma(T; k_S; S) + d \log T

    ``d`` is the rank of :math:`k_Z`: the number of contexts, of features if it is linear, or the
    rank of the inter-task covariance. The roles may be reversed. It takes :math:`k_Z(z, z) \le 1`,
    which the proof says and the theorem does not. As printed; where points may come again, which is
    the reading here, the bound holds without :math:`d \log T` as well. With both maxima over sets
    of distinct points it is false.

    Args:
        horizon: T, in rounds.
        rank: Rank ``d`` of the other factor.
        factor_gain: :math:`\gamma(T; k_S; S)` with points that may come again, or anything above
            it, in nats, such as :attr:`tvbo.theory.InformationGain.ceiling`.

    Returns:
        Nats.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, rank=rank)
    check_not_negative(factor_gain=factor_gain)
    return rank * (factor_gain + math.log(horizon))


def additive_information_gain(*, horizon: int, action_gain: float, context_gain: float) -> float:
    r"""The gain of an additive kernel by those of its terms (Krause, Ong, 2011, Theorem 3).

    .. math:: \gamma(T; k_S \oplus k_Z; X) \le \gamma(T; k_S; S) + \gamma(T; k_Z; Z) + 2 \log T

    As printed; where points may come again, which is the reading here, the bound holds without
    :math:`2 \log T` as well, and for kernels of any size. With the maxima over sets of distinct
    points it is false.

    Args:
        horizon: T, in rounds.
        action_gain: :math:`\gamma(T; k_S; S)` with points that may come again, or anything above
            it, in nats.
        context_gain: The same of the contexts.

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
    r"""Bound on the contextual regret of CGP-UCB (Krause, Ong, 2011, Theorem 1).

    .. math:: R_T \le \sqrt{C_1 T \beta_T \gamma_T} + 2, \quad C_1 = 8 / \log(1+\sigma^{-2})

    Regret is against the best action of each round's context. The + 2 pays for cutting a compact
    set into a grid; in settings 1 and 3, with :class:`tvbo.acquisition.FiniteBeta` or
    :class:`tvbo.acquisition.RKHSBeta`, the bound holds without it.

    The paper has :math:`k(x, x) \le 1`, where the sum of two unit kernels has 2. With
    :math:`k(x, x) \le v` the same proof gives :math:`C_1 = 8 v / \log(1 + v \sigma^{-2})`.

    Args:
        horizon: T, in rounds.
        beta: :math:`\beta_T` of the setting; by :class:`tvbo.acquisition.FiniteBeta`,
            :class:`tvbo.acquisition.CompactBeta` or :class:`tvbo.acquisition.RKHSBeta`.
        information_gain: :math:`\gamma_T` over pairs, or anything above it, in nats.
        noise_variance: σ² > 0, in squared units of the reward.
        prior_variance: ``v``, the largest :math:`k(x, x)`, in the same unit. Setting 3 takes 1.

    Returns:
        In units of the reward.

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
