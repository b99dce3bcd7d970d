r"""Orders of the maximum information gain in the horizon, up to constants."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvbo.values import check_count


@dataclass(frozen=True)
class InformationOrder:
    r"""An order of :math:`\gamma_T`, :math:`d\, T^p (\log T)^q`.

    Constants are left out: orders compare kernels as ``T`` grows, and bound no single gain.

    Attributes:
        horizon_exponent: ``p``.
        log_exponent: ``q``.
        factor: ``d``, the dimension or rank that the paper keeps in sight; 1 where it does not.
    """

    horizon_exponent: float
    log_exponent: float
    factor: float = 1.0

    def __call__(self, horizon: float) -> float:
        """Return the order at horizon T, in rounds.

        Raises:
            ValueError: if ``horizon`` is below 1 or infinite.
        """
        if not 1 <= horizon < math.inf:
            raise ValueError(f"Expected horizon >= 1 and finite. Got {horizon}.")
        logs = float(math.log(horizon) ** self.log_exponent)
        return self.factor * float(horizon**self.horizon_exponent) * logs

    def times_rank(self, rank: int) -> InformationOrder:
        r"""Return the order of the product with a kernel of rank ``rank``.

        Krause and Ong (2011), Theorem 2. Linear kernel in :math:`d_1` dimensions times squared
        exponential in :math:`d_2`: ``squared_exponential_information_order(d2).times_rank(d1)`` is
        :math:`d_1 (\log T)^{d_2 + 1}`, as in Section 5.2. The :math:`d \log T` of the theorem is
        not above the order of any kernel in this module.

        Raises:
            ValueError: if ``rank`` is not a whole number above 0.
        """
        check_count(rank=rank)
        return replace(self, factor=rank * self.factor)


def linear_information_order(dim: int) -> InformationOrder:
    r"""Return the order of a linear kernel, :math:`d \log T` (Srinivas et al., 2010, Theorem 5).

    Args:
        dim: Number ``d`` of features.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0.
    """
    check_count(dim=dim)
    return InformationOrder(0.0, 1.0, factor=float(dim))


def squared_exponential_information_order(dim: int) -> InformationOrder:
    r"""Return the order of the squared exponential, :math:`(\log T)^{d+1}`.

    Srinivas et al. (2010), Theorem 5.

    Args:
        dim: Dimension ``d`` of the points.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0.
    """
    check_count(dim=dim)
    return InformationOrder(0.0, dim + 1.0)


def matern_information_order(dim: int, nu: float, *, sharper: bool = False) -> InformationOrder:
    r"""Return the order of a Matérn kernel, :math:`T^{d(d+1)/(2\nu+d(d+1))} \log T`.

    Srinivas et al. (2010), Theorem 5. The sharper order of Vakili, Khezeli and Picheny (2021),
    which Vakili et al. (2023) use in Corollary 6.3, has smaller powers in every dimension:

    .. math:: T^{d/(2\nu+d)} (\log T)^{2\nu/(2\nu+d)}

    A product of two Matérn kernels, one of actions and one of contexts, is not a Matérn kernel over
    both, although Section 5.1 of Krause and Ong (2011) says so (it is true of the squared
    exponential): for such a product this order with the joint dimension is not proved.

    Args:
        dim: Dimension ``d`` of the points.
        nu: Smoothness ν > 1.
        sharper: Whether to return the sharper order.

    Raises:
        ValueError: if ``dim`` is not a whole number above 0, or ν is not above 1 and finite.
    """
    check_count(dim=dim)
    if not 1 < nu < math.inf:
        raise ValueError(f"Expected nu > 1 and finite. Got {nu}.")
    if sharper:
        return InformationOrder(dim / (2 * nu + dim), 2 * nu / (2 * nu + dim))
    area = dim * (dim + 1)
    return InformationOrder(area / (2 * nu + area), 1.0)
