"""The block length of R-GP-UCB."""

from __future__ import annotations

import math

CONSTANT_SE, CONSTANT_MATERN = 12.0, 24.0


def block_length(
    forgetting_rate: float, horizon: float, *, dim: int = 1, nu: float = math.inf
) -> int:
    r"""Return the block length N of R-GP-UCB.

    Bogunovic et al. (2016), Corollary 4.1 and Section 5.1. :math:`N = \lceil \min(T, 12
    \varepsilon^{-1/4}) \rceil` for the squared exponential kernel, and :math:`N = \lceil \min(T, 24
    \varepsilon^{-1/(4-c)}) \rceil` with :math:`c = d(d+1) / (2\nu + d(d+1))` for Matérn. The
    constants are the paper's, found there by cross-validation on its synthetic data.

    Args:
        forgetting_rate: ε per round.
        horizon: T, in rounds.
        dim: Dimension ``d`` of the actions; used for Matérn only.
        nu: Smoothness ν of Matérn; infinity for the squared exponential.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 <= forgetting_rate <= 1 or horizon < 1 or dim < 1 or nu <= 0:
        raise ValueError(
            "Expected forgetting_rate in [0, 1], horizon >= 1, dim >= 1 and nu > 0. "
            f"Got {forgetting_rate}, {horizon}, {dim}, {nu}."
        )
    if forgetting_rate == 0:
        return math.ceil(horizon)
    if math.isinf(nu):
        length = CONSTANT_SE * float(forgetting_rate**-0.25)
    else:
        c = dim * (dim + 1) / (2 * nu + dim * (dim + 1))
        length = CONSTANT_MATERN * float(forgetting_rate ** (-1 / (4 - c)))
    return math.ceil(min(horizon, length))
