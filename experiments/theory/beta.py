r"""β of theorems: TV-GP-UCB and R-GP-UCB, and CGP-UCB in three settings.

They explore far more than is good in practice; :class:`tvbo.acquisition.LogBeta` is the practical
schedule. With :class:`FiniteBeta`, :class:`CompactBeta` and :class:`RKHSBeta` the contextual regret
is at most ``cgp_ucb_regret_bound``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FiniteBeta:
    r"""Finitely many pairs of action and context (Krause, Ong, 2011, Theorem 1, setting 1).

    .. math:: \beta_t = 2 \log \frac{|X|\, t^2 \pi^2}{6 \delta}

    The reward function is drawn from the GP. :math:`|X| = |S|\,|Z|` counts pairs. The number of
    actions :math:`|S|` is enough, whatever the contexts: in round ``t`` the interval must cover at
    :math:`z_t` alone, and the paper's Lemma 5.2 with :math:`S_t = S` says that it does. With one
    context it is β of GP-UCB on a finite set (Srinivas et al., 2010).

    Args:
        num_pairs: :math:`|X|`, or :math:`|S|`; a whole number, at least 1.
        delta: The bound holds with probability at least ``1 - delta``.

    Raises:
        ValueError: if ``num_pairs`` is no whole number above 0, or ``delta`` lies outside (0, 1).
    """

    num_pairs: int
    delta: float = 0.1

    def __post_init__(self) -> None:
        _check_whole("num_pairs", self.num_pairs)
        _check_delta(self.delta)

    def __call__(self, t: int) -> float:
        """Return β in round ``t``; it is positive in every round."""
        return 2 * math.log(self.num_pairs * t**2 * math.pi**2 / (6 * self.delta))


@dataclass(frozen=True)
class CompactBeta:
    r"""A compact, convex set of actions (Krause, Ong, 2011, Theorem 1, setting 2).

    .. math:: \beta_t = 2 \log \frac{2 \pi^2 t^2}{3 \delta}
        + 2d \log\Big(t^2 d b r \sqrt{\log \frac{4 d a}{\delta}}\Big)

    The reward function is drawn from the GP, and :math:`\Pr\{\sup |\partial f / \partial s_j| > L\}
    \le a e^{-(L/b)^2}` along each coordinate of the action, the supremum taken over actions and
    contexts.

    *The dimension.* In the theorem d is the dimension of the pairs, :math:`X \subseteq [0, r]^d`.
    Its proof divides the actions alone into a grid and needs smoothness along them only, so
    ``dim`` is the number of action coordinates, and contexts may be of any kind. The number of all
    coordinates gives the theorem as printed, with a larger β.

    *The formula.* Lemma 5.4 in the appendix has :math:`4d \log(d t b r \sqrt{\log(4da/\delta)})`
    for the second term. That is larger by :math:`2d \log(d b r \sqrt{\log(4da/\delta)})`, which may
    be negative, and does not follow from the grid of the proof; the formula of the theorem does,
    and is implemented. The second term is a logarithm of a number of grid points, which is at
    least 1, so it is clamped at 0.

    Args:
        dim: Number ``d`` of action coordinates; a whole number, at least 1.
        delta: The bound holds with probability at least ``1 - delta``.
        side: Side ``r`` of the cube ``[0, r]^d`` that holds the actions, in their unit.
        a: Constant of the smoothness assumption, at least 1: where it holds with a smaller
            constant, it holds with 1. See ``tail_constants``.
        b: The other constant, in units of the reward per unit of the action.

    Raises:
        ValueError: if an argument is out of range.
    """

    dim: int
    delta: float = 0.1
    side: float = 1.0
    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        _check_whole("dim", self.dim)
        _check_delta(self.delta)
        for name in ("side", "b"):
            _check_positive(name, getattr(self, name))
        if not 1 <= self.a < math.inf:
            raise ValueError(f"Expected a >= 1 and finite. Got {self.a}.")

    def __call__(self, t: int) -> float:
        """Return β in round ``t``; it is positive in every round."""
        d = self.dim
        steepness = self.b * math.sqrt(math.log(4 * d * self.a / self.delta))
        points_per_side = t**2 * d * self.side * steepness
        grid = 2 * d * math.log(max(1.0, points_per_side))
        return 2 * math.log(2 * math.pi**2 * t**2 / (3 * self.delta)) + grid


@dataclass(frozen=True)
class RKHSBeta:
    r"""A function of bounded norm, without a prior (Krause, Ong, 2011, Theorem 1, setting 3).

    .. math:: \beta_t = 2 B^2 + 300\, \gamma_t \ln^3(t / \delta)

    No prior is assumed: :math:`\|f\|_k \le B`, and the noise is any martingale difference sequence
    bounded by σ, the root of the model's noise variance. :math:`k(x, x) \le 1`.

    Args:
        norm_bound: ``B``, at least 0, in units of the reward.
        information_gain: :math:`\gamma_t` over pairs of action and context, or an upper bound, in
            nats, as a function of the round that never decreases. From a greedy search:
            ``lambda t: gain.ceiling[t - 1].item()`` (``InformationGain.ceiling``).
        delta: The bound holds with probability at least ``1 - delta``.

    Raises:
        ValueError: if ``norm_bound`` is negative or infinite, or ``delta`` lies outside (0, 1);
            in a call, if the information gain of that round is negative or infinite.
        TypeError: if ``information_gain`` is no function.
    """

    norm_bound: float
    information_gain: Callable[[int], float]
    delta: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.norm_bound < math.inf:
            raise ValueError(f"Expected norm_bound >= 0 and finite. Got {self.norm_bound}.")
        if not callable(self.information_gain):
            raise TypeError(
                "Expected information_gain to be a function of the round. "
                f"Got {self.information_gain!r}."
            )
        _check_delta(self.delta)

    def __call__(self, t: int) -> float:
        """Return β in round ``t``; it is never negative."""
        gain = float(self.information_gain(t))
        if not 0 <= gain < math.inf:
            raise ValueError(f"Expected information_gain({t}) >= 0 and finite. Got {gain}.")
        return 2 * self.norm_bound**2 + 300 * gain * math.log(t / self.delta) ** 3


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
        _check_delta(self.delta)
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


def _check_whole(name: str, value: int) -> None:
    if not 1 <= value < math.inf or value != int(value):
        raise ValueError(f"Expected {name} to be a whole number >= 1. Got {value}.")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"Expected {name} > 0 and finite. Got {value}.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"Expected delta in (0, 1). Got {delta}.")
