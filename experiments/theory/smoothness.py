r"""The constants of the smoothness assumptions (9) and (10)."""

from __future__ import annotations

import math
from typing import NamedTuple

from tvbo.values import check_not_negative, check_positive


class TailConstants(NamedTuple):
    r"""``a`` and ``b`` of :math:`\Pr(\sup |g| > L) \le a\,e^{-(L/b)^2}`."""

    a: float
    b: float


def tail_constants(
    expected_supremum: float, standard_deviation: float, slack: float = 1.0
) -> TailConstants:
    r"""Return constants for which a Gaussian process satisfies (9) or (10).

    Bogunovic et al. (2016) assume (9) for the function and (10) for its partial derivatives, with
    constants that they do not give. The inequality of Borell, Tsirelson, Ibragimov and Sudakov
    gives such constants: with :math:`m = E \sup |g|` and :math:`s^2 = \sup \mathrm{Var}(g)`,
    :math:`\Pr(\sup |g| > L) \le e^{-(L - m)^2 / 2 s^2}` for :math:`L \ge m`, and
    :math:`(L - m)^2 \ge L^2 / (1 + \eta) - m^2 / \eta` for every :math:`\eta > 0`. Hence

    .. math:: a = e^{m^2 / (2 s^2 \eta)}, \quad b^2 = 2 (1 + \eta) s^2,

    which holds for :math:`L < m` as well, where the right side of the assumption exceeds 1.

    Args:
        expected_supremum: ``m``, of the function for (9), or of a partial derivative for (10), over
            the domain, for example estimated by the mean over draws on a fine grid.
        standard_deviation: ``s``: for (9) the root of the largest ``k(x, x)``. For (10) and the
            squared exponential kernel of length-scale ``l``, ``1 / l``; for Matérn with
            :math:`\nu > 1`, :math:`\sqrt{\nu / (\nu - 1)} / l`.
        slack: η; the larger, the smaller is ``a`` and the larger is ``b``.

    Returns:
        ``a`` at least 1, and ``b`` in the unit of ``s``.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_not_negative(expected_supremum=expected_supremum)
    check_positive(standard_deviation=standard_deviation, slack=slack)
    ratio = expected_supremum / standard_deviation
    return TailConstants(
        a=math.exp(ratio**2 / (2 * slack)),
        b=math.sqrt(2 * (1 + slack)) * standard_deviation,
    )
