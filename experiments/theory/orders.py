r"""Orders of regret in the horizon, and in the forgetting rate or the delay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from experiments.theory.information_orders import InformationOrder, matern_information_order
from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.values import check_count, check_not_negative


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
        check_forgetting_rate(forgetting_rate)
        static = float(horizon**self.horizon_exponent)
        return max(static, horizon * float(forgetting_rate**self.rate_exponent))


def r_gp_ucb_order(*, dim: int = 1, nu: float = math.inf, sharper: bool = False) -> RegretOrder:
    r"""Return the order of R-GP-UCB with its best block length.

    Bogunovic et al. (2016), Corollary 4.1. :math:`\max\{\sqrt{T^{1+c}}, T \varepsilon^{(1-c) /
    2(4-c)}\}` with :math:`c = d(d+1) / (2\nu + d(d+1))`; the squared exponential is ``c = 0``:
    :math:`\max\{\sqrt T, T \varepsilon^{1/8}\}`. The block length is :math:`\Theta(\min\{T,
    \varepsilon^{-1/(4-c)}\})`; :func:`block_length` has the paper's constants.

    Args:
        dim: Dimension ``d`` of the actions; used for Matérn only.
        nu: Smoothness ν > 2 of Matérn; infinity for the squared exponential.
        sharper: Whether to take :math:`c = d / (2\nu + d)`, of the sharper
            :func:`matern_information_order`, which the paper has not.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0, or ν is not above 2.
    """
    c = _information_exponent(dim, nu, sharper)
    return RegretOrder((1 + c) / 2, (1 - c) / (2 * (4 - c)))


def tv_gp_ucb_order(*, dim: int = 1, nu: float = math.inf, sharper: bool = False) -> RegretOrder:
    r"""Return the order of TV-GP-UCB (Bogunovic et al., 2016, Corollary 4.1).

    :math:`\max\{\sqrt{T^{1+c}}, T \varepsilon^{(1-c) / 2(3-c)}\}`, ``c`` as in
    :func:`r_gp_ucb_order`; for the squared exponential :math:`\max\{\sqrt T, T
    \varepsilon^{1/6}\}`. It comes from (21) with :math:`\tilde N = \varepsilon^{-1/(3-c)}`. The
    correction of (21) in :func:`information_gain_by_blocks` does not change it.

    Args:
        dim: Dimension ``d`` of the actions; used for Matérn only.
        nu: Smoothness ν > 2 of Matérn; infinity for the squared exponential.
        sharper: Whether to take :math:`c = d / (2\nu + d)`, of the sharper
            :func:`matern_information_order`, which the paper has not.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0, or ν is not above 2.
    """
    c = _information_exponent(dim, nu, sharper)
    return RegretOrder((1 + c) / 2, (1 - c) / (2 * (3 - c)))


@dataclass(frozen=True)
class DelayedRegretOrder:
    r"""An order of regret with late outcomes, :math:`c\, T^p (\log T)^q \log\log T + E[\tau]`.

    Constants are left out, but for those that the paper keeps in sight: the order compares kernels
    and delays, and bounds the regret of no run.

    Attributes:
        horizon_exponent: ``p``.
        log_exponent: ``q``.
        factor: ``c``, the part of the dimension.
    """

    horizon_exponent: float
    log_exponent: float
    factor: float = 1.0

    def __call__(self, horizon: float, mean_delay: float) -> float:
        """Return the order at horizon T and mean delay, both in rounds.

        Raises:
            ValueError: if ``horizon`` is below 3 or infinite, or the delay negative or infinite.
        """
        if not 3 <= horizon < math.inf:
            raise ValueError(f"Expected horizon >= 3 and finite. Got {horizon}.")
        check_not_negative(mean_delay=mean_delay)
        log = math.log(horizon)
        logs = float(log**self.log_exponent) * math.log(log)
        return self.factor * float(horizon**self.horizon_exponent) * logs + mean_delay


def bpe_delay_order(information: InformationOrder, *, dim: int) -> DelayedRegretOrder:
    r"""Return the order of BPE-Delay on a compact set (Vakili et al., 2023, Corollary 6.3).

    Theorem 6.2, :math:`\tilde\beta' \log\log T \sqrt{T \Gamma_T} + E[\tau]` with
    :math:`\tilde\beta'` of order :math:`\sqrt{d \log T}`, at the order of :math:`\Gamma_T`:

    * :func:`matern_information_order` with ``sharper=True``:
      :math:`T^{(\nu+d)/(2\nu+d)}`, (11), of which the paper leaves out the logarithms;
    * :func:`squared_exponential_information_order`: :math:`\sqrt T (\log T)^{(d+2)/2}
      \log\log T`, where (12) prints the larger power ``d + 1`` of the logarithm;
    * :func:`linear_information_order`: :math:`d \sqrt T \log T \log\log T`, (13).

    The factor :math:`\sqrt d` is kept for each kernel; the paper keeps it for the linear one.

    Args:
        information: The order of :math:`\Gamma_T`.
        dim: Dimension ``d`` of the actions.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0.
    """
    check_count(dim=dim)
    return DelayedRegretOrder(
        (1 + information.horizon_exponent) / 2,
        (1 + information.log_exponent) / 2,
        math.sqrt(dim * information.factor),
    )


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
    check_forgetting_rate(forgetting_rate)
    return horizon * forgetting_rate


def _information_exponent(dim: int, nu: float, sharper: bool) -> float:
    r"""Return ``c`` such that :math:`\gamma_T` grows like :math:`T^c`, up to logarithms."""
    check_count(dim=dim)
    if not nu > 2:
        raise ValueError(f"Expected nu > 2, or infinity for the squared exponential. Got {nu}.")
    if math.isinf(nu):
        return 0.0
    return matern_information_order(dim, nu, sharper=sharper).horizon_exponent
