r"""Exact run lengths of a Bernoulli CUSUM chart (Reynolds, Stoumbos, 1999).

The chart monitors events that have a known probability in control, before a change. Its statistic
starts at 0, rises by ``step`` with each event and falls by 1 without one, never below 0; it raises
an alarm on reaching ``threshold``, and restarts at 0. Below the threshold it is a Markov chain on
``0, ..., threshold - 1``, whose run length is known exactly. All runs here start at 0, the worst
case for detecting a change, since a higher statistic is closer to its alarm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tvbo.values import check_count

ROUNDING = 1e-9
"""Difference up to which two odds, or two probabilities, are equal."""


def cusum_step(probability: float, changed: float) -> int:
    r"""Return the step that makes the statistic a log likelihood ratio, as a whole number.

    An event changes the log likelihood ratio of ``changed``, :math:`p_1`, to ``probability``,
    :math:`p_0`, by :math:`\log(p_1 / p_0)`; no event lowers it by :math:`\log((1 - p_0) / (1 -
    p_1))`. The step is their ratio, rounded (:math:`m - 1` with the :math:`m` of Reynolds,
    Stoumbos, 1999) to a number with which the statistic falls on average before the change and
    rises after it.

    Args:
        probability: Probability :math:`p_0` of an event in control.
        changed: Probability :math:`p_1` of an event after the change to be detected.

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
    # Strictly between the odds, up to rounding: 1 - 0.8 differs from 0.2.
    lowest = math.floor((1 - changed) / changed + ROUNDING) + 1
    highest = math.ceil((1 - probability) / probability - ROUNDING) - 1
    if lowest > highest:
        raise ValueError(
            "Expected probabilities of an event before and after the change that a statistic of "
            f"whole steps distinguishes, such as 0.05 and 0.5. Got {probability} and {changed}."
        )
    return min(max(lowest, round(up / down)), highest)


def average_run_length(threshold: int, step: int, probability: float) -> float:
    r"""Return the expected number of outcomes until an alarm, its own included.

    With :math:`L(g)` the expected number from statistic :math:`g`, and :math:`L(g) = 0` from
    :math:`h`, the threshold, on:

    .. math:: L(g) = 1 + p\,L(g + \text{step}) + (1 - p)\,L(\max(0, g - 1)).

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Probability of an event, in (0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(threshold, step, probability)
    p, q = probability, 1 - probability
    # From the top down, L(g) = a[g] + b[g] L(g - 1), with c[g] = 1 - b[g]. All terms are positive
    # and none is a difference, so that no digits are lost where alarms are rare.
    a, b, c = ([x] * (threshold + step) for x in (0.0, 0.0, 1.0))
    A, C = 0.0, 1.0
    for g in range(threshold - 1, -1, -1):
        A, C = 0.0, 0.0  # L(g + step) = A + (1 - C) L(g)
        for above in range(g + 1, g + step + 1):
            A, C = a[above] + b[above] * A, c[above] + b[above] * C
        a[g], b[g], c[g] = (x / (q + p * C) for x in (1 + p * A, q, p * C))
    return (1 + p * A) / (p * C)


def cusum_threshold(false_alarm_rate: float, step: int, probability: float) -> int:
    """Return the smallest threshold whose false alarm rate is at most the given one.

    The long-run rate is one over the average run length.

    Args:
        false_alarm_rate: False alarms per outcome, in (0, 1).
        step: Rise of the statistic with an event, at least 1.
        probability: Probability of an event in control, in (0, 1].

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < false_alarm_rate < 1:
        raise ValueError(
            f"Expected false_alarm_rate in (0, 1), per outcome. Got {false_alarm_rate}."
        )

    def is_sufficient(threshold: int) -> bool:
        return average_run_length(threshold, step, probability) * false_alarm_rate >= 1

    high = 1
    while not is_sufficient(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_sufficient(middle) else (middle, high)
    return high


def detection_probability(threshold: int, step: int, probability: float, within: int) -> float:
    """Return the probability of an alarm among the first ``within`` outcomes.

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Probability of an event after the change, in (0, 1].
        within: Number of outcomes since the change, at least 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count(within=within)
    transitions = _transitions(threshold, step, probability)
    surviving: float = torch.linalg.matrix_power(transitions, within)[0].sum().item()
    return 1 - surviving


def detection_delay(threshold: int, step: int, probability: float, quantile: float = 0.95) -> int:
    """Return the number of outcomes within which an alarm has probability ``quantile``.

    Args:
        threshold: Statistic at which the alarm is raised, at least 1.
        step: Rise of the statistic with an event, at least 1.
        probability: Probability of an event after the change, in (0, 1].
        quantile: In (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"Expected a quantile in (0, 1). Got {quantile}.")
    transitions = _transitions(threshold, step, probability)
    state = torch.zeros(threshold, dtype=torch.float64)
    state[0] = 1.0
    delay = 0
    # Where the quantile is met exactly, rounding must not add an outcome.
    while state.sum() - (1 - quantile) > ROUNDING:
        state = state @ transitions
        delay += 1
    return delay


def _transitions(threshold: int, step: int, probability: float) -> Tensor:
    """Return the transition probabilities between statistics without an alarm."""
    _check(threshold, step, probability)
    transitions = torch.zeros(threshold, threshold, dtype=torch.float64)
    for g in range(threshold):
        transitions[g, max(0, g - 1)] += 1 - probability
        if g + step < threshold:
            transitions[g, g + step] += probability
    return transitions


def _check(threshold: int, step: int, probability: float) -> None:
    check_count(threshold=threshold, step=step)
    if not 0 < probability <= 1:
        raise ValueError(f"Expected the probability of an event in (0, 1]. Got {probability}.")
