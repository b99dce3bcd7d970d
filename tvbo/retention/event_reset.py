r"""Resetting the model after a detected change, by a Bernoulli CUSUM chart.

The chart monitors events that have a known probability in control, before a change. Its statistic
starts at 0, rises by ``step`` with each event and falls by 1 without one, never below 0; it raises
an alarm on reaching ``threshold``, and restarts at 0. Below the threshold it is a Markov chain on
``0, ..., threshold - 1``, whose run length is known exactly. All runs here start at 0, the worst
case for detecting a change, since a higher statistic is closer to its alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from botorch.models.model import Model
from torch import Tensor

from tvbo.retention.base import Admission, Prediction, Rejection
from tvbo.spaces.observations import Observations
from tvbo.values import check_probability

ROUNDING = 1e-9
"""Difference up to which two odds, or two probabilities, are equal; and relative difference up to
which an outcome equals a prediction of predictive variance zero."""

LEARNED = ("statistic", "since", "alarms", "_rise_began", "_newest", "_ignored_until")
"""Attributes that change with outcomes."""


class EventReset(Admission):
    r"""Discard old observations after outcomes have left the model's confidence band.

    While the model is right, the residual :math:`(y - \mu) / \sqrt{\sigma_D^2 + \sigma^2}` of
    an outcome is standard normal and independent of the previous ones. So each outcome lies outside
    the central band of probability ``band`` with probability :math:`p_0 = 1 - \text{band}`. A
    Bernoulli CUSUM chart (Reynolds, Stoumbos, 1999) detects a rise of that probability to
    :math:`p_1 =` ``outside``:

    .. math:: G \leftarrow \max(0,\; G + m) \text{ outside the band}, \quad
        G \leftarrow \max(0,\; G - 1) \text{ inside}, \quad
        m = \frac{\log(p_1 / p_0)}{\log\big((1 - p_0) / (1 - p_1)\big)}, \text{ rounded}.

    At :math:`G \ge h` an alarm is raised. The threshold ``h`` is the smallest for which a right
    model raises no more than ``false_alarm_rate`` alarms per outcome; the resulting rate is exact,
    computed from the Markov chain of the chart. The threshold is above ``m``, so that a single
    outlier never raises an alarm.

    The change is dated to the first outcome after the statistic last was 0: observations from then
    on stay, older ones are dropped at the next ask. The chart restarts at 0.

    Where outcomes come late, an outcome is counted only if its action was chosen after the last
    counted outcome was observed: the residuals of trials open at the same time are correlated,
    those of the counted outcomes are independent. The false alarm rate and the detection delay are
    per counted outcome, and predictions of the model before a reset raise no alarm after it.

    The rate is exact under two assumptions:

    * The model is right: kernel, noise variance, ε. Where they are learned or wrong, the rate is
      approximate. An outcome observed with its own ``Yvar`` is compared with that noise variance.
    * Outcomes enter the model and stay. If a window or a limit drops observations, residuals are
      correlated; those of two outcomes that :class:`EntropyThreshold` discards have a correlation
      of up to :math:`1 - e^{-2\epsilon}`.

    A change is detected only in the values of the actions that are chosen. Together with an
    :class:`EntropyThreshold` in mode ``"skip"`` there are no further outcomes; use ``"discard"``.

    Args:
        false_alarm_rate: False alarms per outcome, at most; in (0, 1).
        band: Probability of the model's confidence band; in (0, 1).
        outside: Probability of an outcome outside the band after a change that is to be detected
            fast; above ``1 - band``, below 1. Larger changes are detected faster, smaller ones more
            slowly.

    Attributes:
        step: m.
        threshold: h.
        false_alarm_rate: The exact rate, at most the argument.
        statistic: G.
        since: Time from which observations stay; minus infinity before the first alarm.
        alarms: Times of the outcomes that raised an alarm.

    Raises:
        ValueError: if an argument is out of range, or ``outside`` is too close to ``1 - band`` for
            a statistic of whole steps.

    Example:
        >>> optimizer = recipes.gp_ucb(..., retention=EventReset(false_alarm_rate=1e-3))
        >>> optimizer.retention.detection_delay(0.95)
        14
    """

    def __init__(self, false_alarm_rate: float = 1e-3, *, band: float = 0.95, outside: float = 0.5):
        check_probability(band=band, false_alarm_rate=false_alarm_rate)
        if not 1 - band < outside < 1:
            raise ValueError(
                f"Expected outside in ({1 - band:g}, 1), above the share 1 - band that a right "
                f"model leaves outside. Got {outside}."
            )
        self.band = band
        self.outside = outside
        self.step = cusum_step(1 - band, outside)
        threshold = cusum_threshold(false_alarm_rate, self.step, 1 - band)
        self.threshold = max(threshold, self.step + 1)
        self.false_alarm_rate = 1 / average_run_length(self.threshold, self.step, 1 - band)
        self.statistic = 0
        self.since = -math.inf
        self.alarms: list[float] = []
        self._limit = NormalDist().inv_cdf(0.5 + 0.5 * band)
        # Time of the first outcome since the statistic last was 0.
        self._rise_began: float = math.inf
        # Trial of the newest action chosen, and of that when an outcome was last counted.
        self._newest = self._ignored_until = 0

    def detection_delay(self, probability: float = 0.95) -> int:
        """Return the number of counted outcomes within which a change is detected.

        The change is one after which outcomes lie outside the band independently with probability
        ``outside``, and the statistic starts at 0, the worst case. A model that is updated with
        these outcomes adapts: its band widens or moves, and that probability falls.

        Args:
            probability: Probability of detection, in (0, 1).

        Raises:
            ValueError: if ``probability`` lies outside (0, 1).
        """
        check_probability(probability=probability)
        h, event = self.threshold, self.outside
        # The transition probabilities between statistics without an alarm.
        transitions = event * np.eye(h, k=self.step) + (1 - event) * np.eye(h, k=-1)
        transitions[0, 0] += 1 - event
        state, delay = np.eye(h)[0], 0
        # Where the quantile is met exactly, rounding must not add an outcome.
        while state.sum() - (1 - probability) > ROUNDING:
            state = state @ transitions
            delay += 1
        return delay

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """Return True for the observations since the last detected change."""
        return observations.X[:, -1] >= self.since

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Admit every outcome, and record the action as the newest one chosen."""
        self._newest = prediction.trial_id
        return None

    def observe_outcome(self, prediction: Prediction, Y: float) -> None:
        """Update the statistic; raise an alarm if it reaches the threshold."""
        if prediction.trial_id <= self._ignored_until:
            return
        self._ignored_until = max(self._newest, prediction.trial_id)
        if self.statistic == 0:
            self._rise_began = prediction.t
        # Where the predictive variance is 0, the band has no width but for rounding.
        half_width = self._limit * math.sqrt(prediction.variance + prediction.noise_variance)
        least = ROUNDING * max(abs(Y), abs(prediction.mean))
        is_outside = abs(Y - prediction.mean) > max(half_width, least)
        self.statistic = max(0, self.statistic + (self.step if is_outside else -1))
        if self.statistic >= self.threshold:
            self.alarms.append(prediction.t)
            self.since = self._rise_began
            self.statistic = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the statistic and what it rests on."""
        return {name: getattr(self, name) for name in LEARNED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
        for name in LEARNED:
            setattr(self, name, state[name])

    def __repr__(self) -> str:
        return (
            f"EventReset(false_alarm_rate={self.false_alarm_rate:.3g}, band={self.band}, "
            f"outside={self.outside})"
        )


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
        ValueError: if the two are so near each other that there is no such whole number.
    """
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
    """
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
    """
    threshold = 1
    # The rate of a threshold has that threshold.
    while average_run_length(threshold, step, probability) * false_alarm_rate < 1 - ROUNDING:
        threshold += 1
    return threshold
