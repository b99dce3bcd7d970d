"""Start afresh when the world has changed."""

from __future__ import annotations

import math
from statistics import NormalDist

from botorch.models.model import Model
from torch import Tensor

from tvbo.observations import Observations
from tvbo.retention.base import Admission
from tvbo.retention.prediction import Prediction, Rejection
from tvbo.theory.cusum import (
    average_run_length,
    cusum_step,
    cusum_threshold,
    detection_delay,
)

ROUNDING = 1e-9
"""Relative difference up to which an outcome is the one predicted, where that was certain."""


class EventReset(Admission):
    r"""Reset when outcomes leave the model's confidence band for good.

    As long as the model is right, the residual :math:`(y - \mu) / \sqrt{\sigma_D^2 + \sigma^2}` of
    an outcome, predicted before it was known, is standard normal and independent of those before
    it. So it lies outside the central band of probability ``band`` with probability
    :math:`p_0 = 1 - \text{band}`, one outcome like the other. A Bernoulli CUSUM chart (Reynolds,
    Stoumbos, 1999) watches for that share to rise to :math:`p_1 =` ``outside``:

    .. math:: G \leftarrow \max(0,\; G + m) \text{ outside the band}, \quad
        G \leftarrow \max(0,\; G - 1) \text{ inside}, \quad
        m = \frac{\log(p_1 / p_0)}{\log\big((1 - p_0) / (1 - p_1)\big)}, \text{ rounded}.

    At :math:`G \ge h` an alarm is raised. The threshold ``h`` is the smallest for which a right
    model raises no more than ``false_alarm_rate`` alarms per outcome; the rate then reached is
    exact, from the chart's Markov chain (:mod:`tvbo.theory.cusum`). It is above ``m``, so that no
    outcome alone, however far off, is taken for a change.

    An alarm takes the change to have come with the first outcome after the statistic last was 0:
    what was observed from then on stays, the rest is dropped at the next ask. The chart starts
    again at 0.

    Where outcomes come late, only that of an action chosen after the last outcome that counted was
    told counts itself: with several trials open at once residuals are correlated, with these they
    are independent. The rate holds per outcome that counts, a change takes as many of them to be
    found, and what the old model predicted raises no alarm against the new one.

    What the rate rests on:

    * The model is right: kernel, noise variance, ε. Where they are learned or wrong, the rate holds
      as far as they fit. An outcome told with its own ``Yvar`` is judged by that.
    * Outcomes enter the model and stay. What a window or a limit drops is no longer predicted from,
      and residuals are correlated through it; two that :class:`EntropyThreshold` discards by up to
      :math:`1 - e^{-2\epsilon}`.

    Nothing is found where nothing is looked at: a change that leaves the values of the actions now
    chosen as they were is noticed once others are tried; and together with an
    :class:`EntropyThreshold` in mode ``"skip"`` no outcomes come any more: take ``"discard"``.

    Args:
        false_alarm_rate: False alarms per outcome, at most; in (0, 1).
        band: Probability of the model's confidence band; in (0, 1).
        outside: Share of outcomes outside the band after a change that should be found fast; above
            ``1 - band``, below 1. Larger shares are found faster still, smaller ones more slowly.

    Attributes:
        step: m.
        threshold: h.
        false_alarm_rate: The rate reached, exact: at most the one asked for.
        statistic: G.
        since: Time from which observations stay; minus infinity before the first alarm.
        alarms: Times of the outcomes that raised an alarm.

    Raises:
        ValueError: if an argument is out of range, or ``outside`` too near to ``1 - band`` for a
            statistic of whole steps.

    Example:
        >>> optimizer = recipes.gp_ucb(..., retention=EventReset(false_alarm_rate=1e-3))
        >>> optimizer.retention.detection_delay(0.95)
        14
    """

    def __init__(self, false_alarm_rate: float = 1e-3, *, band: float = 0.95, outside: float = 0.5):
        if not 0 < band < 1:
            raise ValueError(f"Expected band in (0, 1), a probability. Got {band}.")
        if not 1 - band < outside < 1:
            raise ValueError(
                f"Expected outside in ({1 - band:g}, 1), above the share 1 - band that a right "
                f"model leaves outside. Got {outside}."
            )
        self.band = band
        self.outside = outside
        self.step = cusum_step(1 - band, outside)
        least = cusum_threshold(false_alarm_rate, self.step, 1 - band)
        self.threshold = max(least, self.step + 1)
        self.false_alarm_rate = 1 / average_run_length(self.threshold, self.step, 1 - band)
        self.statistic = 0
        self.since = -math.inf
        self.alarms: list[float] = []
        self._limit = NormalDist().inv_cdf(0.5 + 0.5 * band)
        # Time of the first outcome since the statistic last was 0.
        self._left_zero = math.inf
        # The newest action chosen, and the newest one when an outcome last counted.
        self._newest = (-math.inf, 0)
        self._ignored_until = (-math.inf, 0)

    def detection_delay(self, probability: float = 0.95) -> int:
        """Number of outcomes that count within which a change is found with some probability.

        Of a change after which the share ``outside`` of the outcomes lies outside the band,
        independently, from a statistic of 0, the worst case. A model that goes on learning from
        the outcomes adapts: its band widens or moves, and the share falls as it does.

        Args:
            probability: In (0, 1).

        Raises:
            ValueError: if it lies elsewhere.
        """
        return detection_delay(self.threshold, self.step, self.outside, probability)

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """True for what was observed since the last change found."""
        return observations.X[:, -1] >= self.since

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Admit every outcome; record which actions were chosen knowing the outcomes counted."""
        self._newest = max(self._newest, _order(prediction))
        return None

    def observe_outcome(self, prediction: Prediction, Y: float) -> None:
        """Move the statistic; raise an alarm where it reaches the threshold."""
        if _order(prediction) <= self._ignored_until:
            return
        self._ignored_until = max(self._newest, _order(prediction))
        if self.statistic == 0:
            self._left_zero = prediction.t
        move = self.step if self._is_outside(prediction, Y) else -1
        self.statistic = max(0, self.statistic + move)
        if self.statistic >= self.threshold:
            self.alarms.append(prediction.t)
            self.since = self._left_zero
            self.statistic = 0

    def _is_outside(self, prediction: Prediction, Y: float) -> bool:
        # An outcome that was certain has a band without width.
        deviation = math.sqrt(prediction.variance + prediction.noise_variance)
        if math.isclose(Y, prediction.mean, rel_tol=ROUNDING, abs_tol=ROUNDING * deviation):
            return False
        if deviation == 0:
            return True
        return abs(prediction.standardized(Y)) > self._limit

    def __repr__(self) -> str:
        return (
            f"EventReset(false_alarm_rate={self.false_alarm_rate:.3g}, band={self.band}, "
            f"outside={self.outside})"
        )


def _order(prediction: Prediction) -> tuple[float, int]:
    """In which order actions were chosen, several at one time among them."""
    return prediction.t, prediction.trial_id
