r"""Regret bounds of compressed GP bandits, with their constants (Bedi et al., Section 3).

All are for a function drawn from the prior, :math:`k(x, x) \le 1`, as in
``regret_bounds``; a point is admitted if it is expected to tell more than ε nats.
For the budget of the theorems, :math:`\varepsilon = \tfrac12 \log(1 + T^{-\alpha})`
(:func:`compression_budget`), :math:`2 \varepsilon = \log(1 + T^{-\alpha})`; the proofs
hold for any budget. Rounds whose point is refused count: regret is of the point chosen.

The maximum information gain :math:`\gamma_M` is that of the ``M`` points of the model, and at most
that of ``T`` points.
"""

from __future__ import annotations

import math

from tvbo.values import check_count, check_not_negative, check_positive

COMPACT_DISCRETIZATION_REGRET = math.pi**2 / 6
"""Regret that the discretization of a compact set adds: the sum of 1 / t²."""

GREEDY_SHARE = 1 - math.exp(-1)
"""Share of the maximum information that greedy choice reaches, in the constant of (3.5)."""


def compressed_ucb_regret_bound(
    *,
    horizon: int,
    beta: float,
    information_gain: float,
    noise_variance: float,
    budget: float,
    compact: bool = False,
) -> float:
    r"""Return the regret bound of compressed GP-UCB (Bedi et al., Theorem 3.2, (3.2), (3.4)).

    .. math:: R_T \le \sqrt{C_1 T \beta_T \gamma_M} + T \sqrt{2 \varepsilon\, C_1 \beta_T}
        + \tfrac{\pi^2}{6}, \quad C_1 = 8 / \log(1 + \sigma^{-2})

    The last term is for a compact set only, (3.4). It is returned as printed; the proof has the
    second term smaller by the root of 2, (8.31). :func:`compressed_ucb_run_regret_bound` is smaller
    than both.

    Args:
        horizon: T, in rounds, refused ones included.
        beta: :math:`\beta_T`, by ``FiniteBeta`` for a finite set and
            ``CompactBeta`` for a compact one. The β printed with (3.4) has
            the size ``X`` of a finite set where Srinivas et al. (2010), Theorem 2, have a 2.
        information_gain: :math:`\gamma_M` or an upper bound, in nats, such as
            :attr:`InformationGain.ceiling` for ``T`` points, or for
            :func:`information_model_order_bound` points where that is less.
        noise_variance: σ² > 0.
        budget: ε >= 0, in nats. At 0 nothing is refused, and this is the bound of GP-UCB.
        compact: Whether the actions are a compact set.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(beta=beta, information_gain=information_gain, budget=budget)
    check_positive(noise_variance=noise_variance)
    constant = 8 / math.log1p(1 / noise_variance)
    kept = math.sqrt(constant * horizon * beta * information_gain)
    refused = horizon * math.sqrt(2 * budget * constant * beta)
    return kept + refused + (COMPACT_DISCRETIZATION_REGRET if compact else 0.0)


def compressed_ucb_run_regret_bound(
    *,
    horizon: int,
    beta: float,
    information_gain: float,
    noise_variance: float,
    budget: float,
    num_refused: int,
    compact: bool = False,
) -> float:
    r"""Return the bound for a run of which the number of refused rounds is known.

    Bedi et al., Lemma 8.4 with the first step of (8.30):

    .. math:: R_T \le \sqrt{C_1 T \beta_T \big(\gamma_M + \varepsilon\, |\mathcal M^C|\big)}
        + \tfrac{\pi^2}{6}

    with the last term for a compact set only. With at most ``T`` refused rounds it gives (3.2).

    Args:
        horizon: T, in rounds, refused ones included.
        beta: :math:`\beta_T`, as in :func:`compressed_ucb_regret_bound`.
        information_gain: The nats that the admitted outcomes told, by
            :func:`mutual_information`, or an upper bound.
        noise_variance: σ² > 0.
        budget: ε >= 0, in nats.
        num_refused: Number of refused rounds, :math:`|\mathcal M^C|`, from 0 to T.
        compact: Whether the actions are a compact set.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(beta=beta, information_gain=information_gain, budget=budget)
    check_positive(noise_variance=noise_variance)
    if not 0 <= num_refused <= horizon:
        raise ValueError(f"Expected num_refused in 0, ..., {horizon}. Got {num_refused}.")
    constant = 8 / math.log1p(1 / noise_variance)
    told = information_gain + budget * num_refused
    root = math.sqrt(constant * horizon * beta * told)
    return root + (COMPACT_DISCRETIZATION_REGRET if compact else 0.0)


def compressed_ucb_finite_regret_bound(
    *, horizon: int, beta: float, total_variance: float, noise_variance: float
) -> float:
    r"""Return the bound for a finite set and α = 1/2 (Bedi et al., Corollary 3.3, (3.5)).

    .. math:: R_T \le \sqrt{C_1 \beta_T} \max\{\sqrt{Z_1}, 1\}\, T^{3/4}, \quad
        Z_1 = \frac{\sum_i \lambda_i}{\sigma^2 (1 - e^{-1})}

    with the eigenvalues :math:`\lambda_i` of the covariance over all actions. It requires
    :math:`\varepsilon = \tfrac12 \log(1 + T^{-1/2})`. The corollary is for one dimension; this form
    of it holds in any.

    *The proof.* It drops the constant of Theorem 3.1, (8.61), whose order omits repeats besides
    (``compression``), and takes the larger of two terms for their sum, (8.62). The
    result holds all the same from ``T = 3`` on: an action of variance ``v`` passes the test at most
    :math:`\lceil \sqrt T - \sigma^2 / v \rceil` times, so the admitted outcomes tell at most
    :math:`(1 + \sqrt T) \sum_i \lambda_i / 2 \sigma^2` nats; the refused ones add
    :math:`\sqrt T / 2`; and Lemma 8.4 has the root of the sum.

    Args:
        horizon: T, in rounds, refused ones included; at least 3.
        beta: :math:`\beta_T` by ``FiniteBeta``.
        total_variance: :math:`\sum_i \lambda_i`, the sum of the prior variances of the actions:
            their number, for :math:`k(x, x) = 1`.
        noise_variance: σ² > 0.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    if horizon < 3:
        raise ValueError(f"Expected horizon >= 3. Got {horizon}.")
    check_not_negative(beta=beta)
    check_positive(total_variance=total_variance, noise_variance=noise_variance)
    constant = 8 / math.log1p(1 / noise_variance)
    z1 = total_variance / (noise_variance * GREEDY_SHARE)
    return math.sqrt(constant * beta * max(z1, 1.0)) * float(horizon**0.75)


def compressed_ei_regret_bound(
    *,
    horizon: int,
    beta: float,
    largest_score: float,
    information_gain: float,
    noise_variance: float,
    budget: float,
) -> float:
    r"""Return the bound of compressed expected improvement (Bedi et al., Theorem 3.4, (3.6)).

    .. math:: \frac{\sqrt{3(\beta_T + 1 + R^2)} + \sqrt{\beta_T}}{\sqrt{\log(1 + \sigma^{-2})}}
        \Big(\sqrt{2 T \gamma_M} + T \sqrt{2 \varepsilon}\Big)

    (3.6) prints the denominator without its root, which (9.27) has; for σ² below 0.58 the print
    claims less than is derived.

    *No guarantee.* (9.26) applies Lemma 9.5 to the variances at the maximizer :math:`x^*`. The
    lemma bounds the sum of variances at the points *chosen*, and a rule that does not choose
    :math:`x^*` leaves its variance as it is. So the theorem is not proved. R is known after a run
    only, and is large where a refused action is known to be bad: there :math:`\sigma_D \le \sigma
    \sqrt{e^{2 \varepsilon} - 1}`.

    Args:
        horizon: T, in rounds, refused ones included.
        beta: :math:`\beta_T` by ``FiniteBeta``.
        largest_score: ``R``, the largest :math:`|\mu_D(x) - y^{\max}| / \sigma_D(x)` of any action
            in any round.
        information_gain: :math:`\gamma_M` or an upper bound, in nats.
        noise_variance: σ² > 0.
        budget: ε >= 0, in nats.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(horizon=horizon)
    check_not_negative(
        beta=beta, largest_score=largest_score, information_gain=information_gain, budget=budget
    )
    check_positive(noise_variance=noise_variance)
    widths = math.sqrt(3 * (beta + 1 + largest_score**2)) + math.sqrt(beta)
    told = math.sqrt(2 * horizon * information_gain) + horizon * math.sqrt(2 * budget)
    return widths * told / math.sqrt(math.log1p(1 / noise_variance))
