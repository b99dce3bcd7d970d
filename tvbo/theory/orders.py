r"""Orders of regret in the horizon and the forgetting rate, up to logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.theory.arguments import check_count, check_not_negative, check_rate


@dataclass(frozen=True)
class RegretOrder:
    r"""An order of regret, :math:`\max\{T^p, T \varepsilon^\alpha\}`.

    Constants and logarithms are left out: orders compare settings of one algorithm, and the
    exponents of two. They do not bound the regret of a run.

    Attributes:
        horizon_exponent: ``p``, the exponent at ε = 0.
        rate_exponent: α; the larger, the less regret drift adds, since ε is below 1.
    """

    horizon_exponent: float
    rate_exponent: float

    def __call__(self, horizon: float, forgetting_rate: float) -> float:
        """Return the order at horizon T, in rounds, and ε per round.

        Raises:
            ValueError: if ``horizon`` is negative or infinite, or ε lies outside [0, 1].
        """
        check_not_negative(horizon=horizon)
        check_rate(forgetting_rate)
        static = float(horizon**self.horizon_exponent)
        return max(static, horizon * float(forgetting_rate**self.rate_exponent))


def r_gp_ucb_order(*, dim: int = 1, nu: float = math.inf) -> RegretOrder:
    r"""Return the order of R-GP-UCB with its best block length.

    Bogunovic et al. (2016), Corollary 4.1. :math:`\max\{\sqrt{T^{1+c}}, T \varepsilon^{(1-c) /
    2(4-c)}\}` with :math:`c = d(d+1) / (2\nu + d(d+1))`; the squared exponential is ``c = 0``:
    :math:`\max\{\sqrt T, T \varepsilon^{1/8}\}`. The block length is :math:`\Theta(\min\{T,
    \varepsilon^{-1/(4-c)}\})`; :func:`tvbo.theory.block_length` has the paper's constants.

    Args:
        dim: Dimension ``d`` of the actions; used for Matérn only.
        nu: Smoothness ν > 2 of Matérn; infinity for the squared exponential.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0, or ν is not above 2.
    """
    c = _information_exponent(dim, nu)
    return RegretOrder((1 + c) / 2, (1 - c) / (2 * (4 - c)))


def tv_gp_ucb_order(*, dim: int = 1, nu: float = math.inf) -> RegretOrder:
    r"""Return the order of TV-GP-UCB (Bogunovic et al., 2016, Corollary 4.1).

    :math:`\max\{\sqrt{T^{1+c}}, T \varepsilon^{(1-c) / 2(3-c)}\}`, ``c`` as in
    :func:`r_gp_ucb_order`; for the squared exponential :math:`\max\{\sqrt T, T
    \varepsilon^{1/6}\}`. It comes from (21) with :math:`\tilde N = \varepsilon^{-1/(3-c)}`. The
    correction of (21) in :func:`tvbo.theory.information_gain_by_blocks` does not change it.

    Args:
        dim: Dimension ``d`` of the actions; used for Matérn only.
        nu: Smoothness ν > 2 of Matérn; infinity for the squared exponential.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0, or ν is not above 2.
    """
    c = _information_exponent(dim, nu)
    return RegretOrder((1 + c) / 2, (1 - c) / (2 * (3 - c)))


def lower_bound_order(horizon: float, forgetting_rate: float) -> float:
    r"""Return the order of the lower bound on expected regret (Bogunovic et al., Theorem 4.1).

    :math:`\Omega(T \varepsilon)`, for kernels whose draws are twice differentiable: the squared
    exponential, and Matérn with ν > 4. It holds even if the whole function of the previous round is
    observed. (In the proof, (98) prints :math:`\sqrt{1+\varepsilon}` where
    :math:`\sqrt{1-\varepsilon}` is meant.)

    Args:
        horizon: T, in rounds.
        forgetting_rate: ε per round.

    Raises:
        ValueError: if ``horizon`` is negative or infinite, or ε lies outside [0, 1].
    """
    check_not_negative(horizon=horizon)
    check_rate(forgetting_rate)
    return horizon * forgetting_rate


def _information_exponent(dim: int, nu: float) -> float:
    r"""Return ``c`` such that :math:`\gamma_T` grows like :math:`T^c`, up to logarithms."""
    check_count(dim=dim)
    if not nu > 2:
        raise ValueError(f"Expected nu > 2, or infinity for the squared exponential. Got {nu}.")
    return dim * (dim + 1) / (2 * nu + dim * (dim + 1))
