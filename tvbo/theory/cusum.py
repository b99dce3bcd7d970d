r"""When a Bernoulli CUSUM chart raises an alarm, exactly (Reynolds, Stoumbos, 1999).

The chart watches events that happen with a known probability while all is well. Its statistic
starts at 0 and moves by ``step`` up with each event, by 1 down without one, never below 0; it
raises an alarm on reaching ``threshold``, and starts again at 0. Below the threshold it is a Markov
chain on ``0, ..., threshold - 1``, so that its run length is known without simulation. Here every
run begins at 0: for finding a change that is the worst case, since a higher statistic is nearer to
its alarm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tvbo.theory.arguments import check_count

ROUNDING = 1e-9
"""Difference up to which two odds are one."""


def cusum_step(probability: float, changed: float) -> int:
    r"""The step up that makes the statistic a log likelihood ratio, in whole numbers.

    An event changes the log likelihood ratio of ``changed``, :math:`p_1`, to ``probability``,
    :math:`p_0`, by :math:`\log(p_1 / p_0)`; no event lowers it by
    :math:`\log((1 - p_0) / (1 - p_1))`. The step is their ratio, rounded (:math:`m - 1` with the
    :math:`m` of Reynolds, Stoumbos, 1999) to a number with which the statistic falls on average
    before the change and rises after it.

    Args:
        probability: Of an event while all is well, :math:`p_0`.
        changed: Of an event after the change to be found, :math:`p_1`.

    Raises:
        ValueError: unless ``0 < probability < changed < 1``, or if the two are so near each other
            that there is no such whole number.
    """
    if not 0 < probability < changed < 1:
        raise ValueError(
            "Expected 0 < probability < changed < 1, of an event before and after the change. "
            f"Got {probability} and {changed}."
        )
    up = math.log(changed / probability)
    down = math.log((1 - probability) / (1 - changed))
    # Strictly between the odds, where 1 - 0.8 may be a rounding error off 0.2.
    lowest = math.floor((1 - changed) / changed + ROUNDING) + 1
    highest = math.ceil((1 - probability) / probability - ROUNDING) - 1
    if lowest > highest:
        raise ValueError(
            "Expected probabilities of an event before and after the change that a statistic of "
            f"whole steps tells apart, such as 0.05 and 0.5. Got {probability} and {changed}."
        )
    return min(max(lowest, round(up / down)), highest)


def average_run_length(threshold: int, step: int, probability: float) -> float:
    r"""Expected number of outcomes up to and with an alarm.

    With :math:`L(g)` the expected number from statistic :math:`g`, and :math:`L(g) = 0` from
    :math:`h`, the threshold, on:

    .. math:: L(g) = 1 + p\,L(g + \text{step}) + (1 - p)\,L(\max(0, g - 1)).

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Of an event, in (0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(threshold, step, probability)
    p, q = probability, 1 - probability
    # From the top down, L(g) = a[g] + b[g] L(g - 1), with c[g] = 1 - b[g]: all terms are positive
    # and none is a difference, so that rare alarms cost no digits.
    a, b, c = ([x] * (threshold + step) for x in (0.0, 0.0, 1.0))
    for g in range(threshold - 1, -1, -1):
        A, C = 0.0, 0.0  # L(g + step) = A + (1 - C) L(g)
        for above in range(g + 1, g + step + 1):
            A, C = a[above] + b[above] * A, c[above] + b[above] * C
        a[g], b[g], c[g] = (x / (q + p * C) for x in (1 + p * A, q, p * C))
    return (1 + p * A) / (p * C)


def cusum_threshold(false_alarm_rate: float, step: int, probability: float) -> int:
    """The smallest threshold with no more false alarms per outcome than asked for.

    Their rate in the long run is one over the average run length.

    Args:
        false_alarm_rate: Of false alarms per outcome, in (0, 1).
        step: Rise of the statistic with an event, at least 1.
        probability: Of an event while all is well, in (0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < false_alarm_rate < 1:
        raise ValueError(
            f"Expected false_alarm_rate in (0, 1), per outcome. Got {false_alarm_rate}."
        )

    def enough(threshold: int) -> bool:
        return average_run_length(threshold, step, probability) * false_alarm_rate >= 1

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detection_probability(threshold: int, step: int, probability: float, within: int) -> float:
    """Probability of an alarm among the first ``within`` outcomes.

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Of an event since the change, in (0, 1].
        within: Number of outcomes since the change, at least 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(within=within)
    moves = _moves(threshold, step, probability)
    return 1 - torch.linalg.matrix_power(moves, within)[0].sum().item()


def detection_delay(threshold: int, step: int, probability: float, quantile: float = 0.95) -> int:
    """The number of outcomes within which an alarm is raised with probability ``quantile``.

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Of an event since the change, in (0, 1].
        quantile: In (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"Expected a quantile in (0, 1). Got {quantile}.")
    moves = _moves(threshold, step, probability)
    state = torch.zeros(threshold, dtype=torch.float64)
    state[0] = 1.0
    delay = 0
    while state.sum() > 1 - quantile:
        state = state @ moves
        delay += 1
    return delay


def _moves(threshold: int, step: int, probability: float) -> Tensor:
    """Probabilities of moving from one statistic to another without an alarm."""
    _check(threshold, step, probability)
    moves = torch.zeros(threshold, threshold, dtype=torch.float64)
    for g in range(threshold):
        moves[g, max(0, g - 1)] += 1 - probability
        if g + step < threshold:
            moves[g, g + step] += probability
    return moves


def _check(threshold: int, step: int, probability: float) -> None:
    check_count(threshold=threshold, step=step)
    if not 0 < probability <= 1:
        raise ValueError(f"Expected the probability of an event in (0, 1]. Got {probability}.")
