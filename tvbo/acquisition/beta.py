r"""Schedules for :math:`\beta_t` in :math:`\mu(x) + \sqrt{\beta_t}\,\sigma(x)`, by round ``t``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

BetaSchedule = Callable[[int], float]
"""A function from the round, 1, 2, ..., to β."""


@dataclass(frozen=True)
class LogBeta:
    r"""The practical schedule :math:`\beta_t = c_1 \log(c_2 t)`, clamped at 0.

    Bogunovic et al. (2016), Section 5: ``c1=0.8, c2=4`` on synthetic data, ``c1=0.8, c2=0.4`` on
    temperatures. The clamp matters in the first rounds, where :math:`c_2 t < 1`.

    Args:
        c1: Factor :math:`c_1`, at least 0.
        c2: Factor :math:`c_2` of the round, above 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    c1: float = 0.8
    c2: float = 4.0

    def __post_init__(self) -> None:
        if self.c1 < 0 or self.c2 <= 0:
            raise ValueError(f"Expected c1 >= 0 and c2 > 0. Got c1={self.c1}, c2={self.c2}.")

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self.c1 * max(0.0, math.log(self.c2 * t))


@dataclass(frozen=True)
class ConstantBeta:
    """The same β in every round.

    Args:
        beta: β, at least 0.

    Raises:
        ValueError: if ``beta`` is negative.
    """

    beta: float

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"Expected beta >= 0. Got {self.beta}.")

    def __call__(self, t: int) -> float:
        """Return β, the same in every round."""
        return self.beta


@dataclass(frozen=True)
class _TheoreticalBeta:
    r"""Base class of the schedules (16) and (19), which differ in two constants.

    Args:
        dim: Dimension ``d`` of the action space.
        delta: The bound holds with probability at least ``1 - delta``.
        side: Side ``r`` of the cube ``[0, r]^d`` that holds the actions.
        a: Constant :math:`a_1` of the smoothness assumption (10), at least 1: where (10) holds with
            a smaller constant, it holds with 1.
        b: Constant :math:`b_1` of the smoothness assumption (10).

    Raises:
        ValueError: if ``delta`` lies outside (0, 1), ``a`` below 1, or another argument is not
            positive.
    """

    dim: int
    delta: float = 0.1
    side: float = 1.0
    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(f"Expected delta in (0, 1). Got {self.delta}.")
        if min(self.dim, self.side, self.b) <= 0 or self.a < 1:
            raise ValueError(f"Expected positive dim, side and b, and a >= 1. Got {self}.")

    def _beta(self, t: int, first: float, second: float) -> float:
        d = self.dim
        inner = math.log(d * self.a * second * math.pi**2 * t**2 / self.delta)
        beta = 2 * math.log(first * math.pi**2 * t**2 / self.delta) + 2 * d * math.log(
            self.side * d * self.b * t**2 * math.sqrt(inner)
        )
        return max(0.0, beta)


class ResettingBeta(_TheoreticalBeta):
    r"""The theoretical schedule of R-GP-UCB (Bogunovic et al., 2016, equation (16)).

    .. math:: \beta_t = 2 \log \frac{2 \pi^2 t^2}{3 \delta}
        + 2d \log\Big(r d b t^2 \sqrt{\log \frac{2 d a \pi^2 t^2}{3 \delta}}\Big)
    """

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self._beta(t, first=2 / 3, second=2 / 3)


class TimeVaryingBeta(_TheoreticalBeta):
    r"""The theoretical schedule of TV-GP-UCB (Bogunovic et al., 2016, equation (19)).

    .. math:: \beta_t = 2 \log \frac{\pi^2 t^2}{2 \delta}
        + 2d \log\Big(r d b t^2 \sqrt{\log \frac{d a \pi^2 t^2}{2 \delta}}\Big)
    """

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self._beta(t, first=1 / 2, second=1 / 2)


def as_beta_schedule(beta: float | BetaSchedule) -> BetaSchedule:
    """Return a number as a constant schedule, and a schedule unchanged."""
    return beta if callable(beta) else ConstantBeta(float(beta))
