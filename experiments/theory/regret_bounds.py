r"""Bounds on cumulative regret that hold with probability 1 - δ.

All assume :math:`k(x, x) \le 1`: give rewards in prior standard deviations, and σ² in their square.
β is :math:`\beta_T`, the value of the last round of the schedule named in the theorem.
"""

from __future__ import annotations

import math

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.values import (
    check_count,
    check_not_negative,
    check_positive,
    check_probability,
)

DISCRETIZATION_REGRET = 2.0
"""Regret that the discretization of a compact domain adds: the sum of 1 / t², rounded up."""


def tv_gp_ucb_regret_bound(
    *, horizon: int, beta: float, information_gain: float, noise_variance: float
) -> float:
    r"""Return the regret bound of TV-GP-UCB (Bogunovic et al., 2016, (20)), or of GP-UCB at ε = 0.

    .. math:: R_T \le \sqrt{C_1 T \beta_T \tilde\gamma_T} + 2, \quad C_1 = 8 / \log(1+\sigma^{-2})

    For (21), pass :func:`information_gain_by_blocks` as the gain.

    Args:
        horizon: T, in rounds.
        beta: :math:`\beta_T` of (19), ``TimeVaryingBeta``.
        information_gain: :math:`\tilde\gamma_T` or an upper bound, in nats, such as
            :attr:`InformationGain.ceiling`.
        noise_variance: σ² > 0.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(beta=beta, information_gain=information_gain)
    check_positive(noise_variance=noise_variance)
    constant = 8 / math.log1p(1 / noise_variance)
    return math.sqrt(constant * horizon * beta * information_gain) + DISCRETIZATION_REGRET


def information_gain_by_blocks(
    *,
    horizon: int,
    block: int,
    static_gain: float,
    noise_variance: float,
    forgetting_rate: float,
) -> float:
    r"""Return a bound on the gain under drift by the static gain (Bogunovic et al., (46), (21)).

    .. math:: \tilde\gamma_T \le \Big(\frac{T}{\tilde N} + 1\Big) \Big(\gamma_{\tilde N} +
        \frac{\tilde N}{2} \log\Big(1 + \frac{\varepsilon}{\sigma^2}
        \sqrt{\frac{\tilde N (\tilde N^2 - 1)}{6}}\Big)\Big)

    The paper prints :math:`\tilde N^3 \varepsilon` for the second term in the brackets. Its proof
    drops :math:`\tfrac12` and :math:`\sigma^{-2}` in (56), and for small noise (46) and the step to
    (21) are then false as printed; ``test_regret_bounds.py`` has a counterexample. The
    formula above follows from the same proof with both kept: eigenvalues move by :math:`\Delta_i`
    with :math:`\sum \Delta_i^2 \le \tilde N^2 (\tilde N^2 - 1) \varepsilon^2 / 6`, (53), and the
    sum of :math:`\tfrac12 \log(1 + \sigma^{-2} |\Delta_i|)` is largest where all are equal. It
    grows more slowly than :math:`\tilde N^3 \varepsilon` at any σ, so Corollary 4.1 remains valid.

    Args:
        horizon: T, in rounds.
        block: :math:`\tilde N` in 1, ..., T. The bound holds for each; use the smallest bound.
        static_gain: :math:`\gamma_{\tilde N}`, or an upper bound, in nats.
        noise_variance: σ² > 0.
        forgetting_rate: ε per round.

    Returns:
        Nats.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, block=block)
    if block > horizon:
        raise ValueError(f"Expected block in 1, ..., horizon. Got {block} of {horizon}.")
    check_not_negative(static_gain=static_gain)
    check_positive(noise_variance=noise_variance)
    check_forgetting_rate(forgetting_rate)
    shift = forgetting_rate * math.sqrt(block * (block**2 - 1) / 6)
    drift = block / 2 * math.log1p(shift / noise_variance)
    return (horizon / block + 1) * (static_gain + drift)


def r_gp_ucb_regret_bound(
    *,
    horizon: int,
    block: int,
    beta: float,
    static_gain: float,
    noise_variance: float,
    forgetting_rate: float,
    delta: float,
    a0: float,
    b0: float,
) -> float:
    r"""Return the regret bound of R-GP-UCB (Bogunovic et al., 2016, (17)).

    .. math:: R_T \le \sqrt{C_1 T \beta_T \Big(\frac{T}{N} + 1\Big) \gamma_N} + 2
        + T \psi_T(N, \varepsilon), \quad C_1 = 8 / \log(1+\sigma^{-2})

    Args:
        horizon: T, in rounds.
        block: Block length N, at least 1.
        beta: :math:`\beta_T` of (16), ``ResettingBeta``, at the same δ.
        static_gain: :math:`\gamma_N`, or an upper bound, in nats.
        noise_variance: σ² > 0.
        forgetting_rate: ε per round.
        delta: The bound holds with probability at least ``1 - delta``.
        a0: Constant :math:`a_0` of (9), for example by :func:`tail_constants`.
        b0: Constant :math:`b_0` of (9), in units of the reward.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, block=block)
    check_not_negative(static_gain=static_gain)
    estimation_regret = tv_gp_ucb_regret_bound(
        horizon=horizon,
        beta=beta,
        information_gain=(horizon / block + 1) * static_gain,
        noise_variance=noise_variance,
    )
    mismatch = resetting_mismatch(
        horizon=horizon,
        block=block,
        beta=beta,
        noise_variance=noise_variance,
        forgetting_rate=forgetting_rate,
        delta=delta,
        a0=a0,
        b0=b0,
    )
    return estimation_regret + horizon * mismatch


def resetting_mismatch(
    *,
    horizon: int,
    block: int,
    beta: float,
    noise_variance: float,
    forgetting_rate: float,
    delta: float,
    a0: float,
    b0: float,
) -> float:
    r"""Return the regret per round of a static model under drift (Bogunovic et al., 2016, (18)).

    .. math:: \psi_T = 2 \sqrt{\beta_T (3\sigma^{-2} + \sigma^{-4}) N^3 \varepsilon}
        + 2 (\sigma^{-2} + \sigma^{-4}) N^3 \varepsilon \tilde L_T, \quad
        \tilde L_T = (2 + b_0) \sqrt{\log \frac{2 (1 + a_0) \pi^2 T^2}{3\delta}}

    (18) prints both terms without the 2. By (72) the regret of a round is :math:`2 \Delta^{(\mu)} +
    2 \sqrt{\beta_T} \Delta^{(\sigma)}`, and Lemma D.1 bounds the two Δ by the printed terms, so the
    proof gives twice what is printed. :math:`\tilde L_T` bounds :math:`|y_t|`; in (65) the noise
    has variance 1. The 2 in it is valid up to σ² = 2; above that it is replaced by :math:`\sqrt{2
    \sigma^2}`.

    Args:
        horizon: T, in rounds.
        block: Block length N, at least 1.
        beta: :math:`\beta_T` of (16).
        noise_variance: σ² > 0.
        forgetting_rate: ε per round.
        delta: The bound holds with probability at least ``1 - delta``.
        a0: Constant :math:`a_0` of (9), for example by :func:`tail_constants`.
        b0: Constant :math:`b_0` of (9), in units of the reward.

    Returns:
        :math:`\psi_T(N, \varepsilon)`, in units of the reward per round.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon, block=block)
    check_not_negative(beta=beta)
    check_positive(noise_variance=noise_variance, a0=a0, b0=b0)
    check_forgetting_rate(forgetting_rate)
    check_probability(delta=delta)
    precision = 1 / noise_variance
    drift = block**3 * forgetting_rate
    largest_noise = max(2.0, math.sqrt(2 * noise_variance))
    largest_reward = (largest_noise + b0) * math.sqrt(
        math.log(2 * (1 + a0) * math.pi**2 * horizon**2 / (3 * delta))
    )
    width = math.sqrt(beta * (3 * precision + precision**2) * drift)
    mean = (precision + precision**2) * drift * largest_reward
    return 2 * (width + mean)
