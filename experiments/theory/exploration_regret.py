r"""Regret bounds of batched pure exploration, with their constants (Vakili et al., 2023, App. A).

They hold together with probability :math:`1 - \delta`, if the width is one of Theorems 6.1 and 6.2
and the delay's upper bound :math:`u_T` is one, such as :class:`SubExponentialTail`
(:class:`SubExponentialDelay`, as printed, is not).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tvbo.optimizers.bpe.bpe_delay import exploration_rounds
from tvbo.optimizers.bpe.confidence import Exploration, Width, WidthRule
from tvbo.values import check_count, check_not_negative, check_positive


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
