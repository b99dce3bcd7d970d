r"""Regret bounds of batched pure exploration, with their constants (Vakili et al., 2023, App. A).

They hold together with probability :math:`1 - \delta`, if the width is one of Theorems 6.1 and 6.2
and the delay's upper bound :math:`u_T` is one, such as :class:`SubExponentialTail`
(:class:`SubExponentialDelay`, as printed, is not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tvbo.optimizers.bpe.bpe_delay import exploration_rounds
from tvbo.optimizers.bpe.confidence import Exploration, Width, WidthRule
from tvbo.values import check_count, check_not_negative, check_positive


@dataclass(frozen=True)
class CompactSetWidth:
    r"""Boxes (Vakili et al., 2023, Theorem 6.2 with Lemma 4.3).

    Half the width is :math:`2/u_r + \tilde\beta'_r (\tilde\sigma + 2/\sqrt{u_r})`, with

    .. math:: \tilde\beta'_r = C_k + \frac{\sigma}{\lambda}\sqrt{2 \log\frac{8 R \Gamma}{\delta}},
        \quad \Gamma = c\, \tilde C^d u_r^d, \quad \tilde C = C_k +
        \frac{\max(\sigma, k_{\max}) \sqrt{u_r}}{\lambda} \sqrt{2 \log\frac{16 R u_r}{\delta}}.

    The paper does not define :math:`u_r`. By Lemma 4.3 it corresponds to the number of
    observations, so here it is the number of outcomes of the round that arrived. Formula (9) prints
    the upper bound twice; the lower one has minus signs. The offset is large, so with few outcomes
    no action is eliminated.

    Args:
        rkhs_norm: :math:`C_k`, an upper bound on the RKHS norm of the function.
        noise_sd: σ of the sub-Gaussian noise.
        cover: c of Assumption 4.2: :math:`c\, C_k^d u^d` points cover the box so that no function
            of norm :math:`C_k` changes by more than 1/u from a point to its nearest one.

    Raises:
        ValueError: if one of them is out of range.
    """

    rkhs_norm: float
    noise_sd: float
    cover: float

    def __post_init__(self) -> None:
        check_not_negative(rkhs_norm=self.rkhs_norm, noise_sd=self.noise_sd)
        check_positive(cover=self.cover)

    def __call__(self, exploration: Exploration) -> Width:
        """Return the width, which depends on the number of outcomes that arrived."""
        u, sd = exploration.num_arrived, math.sqrt(exploration.noise_variance)
        # Lemma 4.3 with δ / 4R instead of δ.
        delta = exploration.delta / (4 * exploration.num_rounds)
        spread = max(self.noise_sd, exploration.max_variance) * math.sqrt(u) / sd
        norm = self.rkhs_norm + spread * math.sqrt(2 * math.log(4 * u / delta))
        log_points = math.log(self.cover) + exploration.dim * math.log(norm * u)
        log = max(0.0, math.log(2 / delta) + log_points)
        beta = self.rkhs_norm + self.noise_sd / sd * math.sqrt(2 * log)
        return Width(beta, 2 / u + 2 * beta / math.sqrt(u))


def surviving_regret_bound(
    width: Width,
    *,
    num_outcomes: int,
    information_gain: float,
    noise_variance: float,
    max_variance: float = 1.0,
) -> float:
    r"""Return the largest regret of an action that survives a round (Vakili et al., (25), (26)).

    .. math:: f(x^*) - f(x) \le 4 \tilde\beta \sqrt{c_1 \Gamma(q_r) / q_r}, \quad
        c_1 = 2 v / \log(1 + v \lambda^{-2})

    for a finite set; in general four times half the distance of the bounds at that standard
    deviation, which for a box is (26). The paper has ``v = 1``, the largest prior variance.

    Args:
        width: The width of the bounds at the end of the round.
        num_outcomes: :math:`q_r`, the number of trials at the beginning of the round all of whose
            outcomes arrived by its end.
        information_gain: :math:`\Gamma(q_r)` or an upper bound, in nats.
        noise_variance: λ² > 0, the noise variance of the model.
        max_variance: ``v``, the largest prior variance.

    Returns:
        The bound on the regret of one trial in the next round, in units of the reward.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(num_outcomes=num_outcomes)
    check_not_negative(information_gain=information_gain)
    check_positive(noise_variance=noise_variance, max_variance=max_variance)
    c1 = 2 * max_variance / math.log1p(max_variance / noise_variance)
    deviation = math.sqrt(c1 * information_gain / num_outcomes)
    return 4 * (width.offset + width.multiplier * deviation)


def bpe_delay_regret_bound(
    rule: WidthRule,
    *,
    horizon: int,
    upper_bound: float,
    delta: float,
    information_gain: Sequence[float],
    largest_regret: float,
    noise_variance: float,
    dim: int,
    num_points: int | None,
    max_variance: float = 1.0,
) -> float:
    r"""Return the regret bound of BPE-Delay (Vakili et al., 2023, Appendix A, step 3).

    .. math:: R_T \le t_1 r_{\max} + \sum_{r \ge 2} t_r\, \Delta_{r-1}

    with the rounds' lengths :math:`t_r`, and :math:`\Delta_{r-1}` the bound of
    :func:`surviving_regret_bound` on the actions that survived the round before. Theorems 6.1 and
    6.2 are the orders of this sum.

    Differences from the print: a trial of the first round costs up to :math:`2 C_k \sqrt{k_{\max}}`
    by the norm, where the paper has :math:`C_k k_{\max}`; the last lines of the step lose a factor
    4 in the term with :math:`u_T` and :math:`4 \tilde\beta'` in :math:`2 \sqrt T`, so the second
    lines are computed here, with the lengths as they are; and the number of outcomes that a box's
    width depends on lies between :math:`q_r` and :math:`t_r`, of which the worst is taken.

    Args:
        rule: Rule for the width, :class:`FiniteSetWidth` or
            :class:`CompactSetWidth`.
        horizon: T.
        upper_bound: :math:`u_T(\delta)`, an upper bound on the delay, in rounds of asking; 0 is
            BPE.
        delta: Probability of failure δ.
        information_gain: :math:`\Gamma(1), \dots, \Gamma(T)` or upper bounds, in nats, such as
            :attr:`InformationGain.ceiling`.
        largest_regret: :math:`r_{\max}`, the largest regret of any action, or
            :math:`2 C_k \sqrt{k_{\max}}`.
        noise_variance: λ² > 0, the noise variance of the model.
        dim: Number of columns of an action, d.
        num_points: Number of actions; None for a box.
        max_variance: The largest prior variance, :math:`k_{\max}`.

    Returns:
        The bound, in units of the reward.

    Raises:
        ValueError: if an argument is out of range, or the rule is not made for such a set.
    """
    check_not_negative(largest_regret=largest_regret)
    rounds = exploration_rounds(horizon, upper_bound)
    if len(information_gain) < horizon:
        raise ValueError(
            f"Expected information_gain of 1, ..., {horizon} points. Got {len(information_gain)}."
        )
    exploration = Exploration(
        delta=delta,
        num_rounds=len(rounds),
        num_arrived=1,
        noise_variance=noise_variance,
        dim=dim,
        num_points=num_points,
        max_variance=max_variance,
        horizon=horizon,
    )
    total = rounds[0].length * largest_regret
    for before, current in pairwise(rounds):
        total += current.length * max(
            surviving_regret_bound(
                rule(replace(exploration, num_arrived=arrived)),
                num_outcomes=before.q,
                information_gain=float(information_gain[before.q - 1]),
                noise_variance=noise_variance,
                max_variance=max_variance,
            )
            for arrived in range(before.q, before.length + 1)
        )
    return total
