"""A tuner that takes the arms of a fitted panel by its filter."""

from __future__ import annotations

import bisect
import math
from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.logs.arm_rule import ArmRule
from tvbo.logs.panel_dynamics import Belief
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.trial import Trial
from tvbo.values import check_not_negative

if TYPE_CHECKING:
    from tvbo.logs.panel_report import PanelFit

KEPT = 500
"""Newest outcomes that may still be joined by one of an earlier time."""


class PanelUCB(ArmRule):
    r"""Upper confidence bounds over the arms of a panel, by the filter of its fit.

    At time ``t`` it takes the arm with the largest :math:`\mu_a(t) + \sqrt{\beta} \sigma_a(t)`, of
    its true value given the log and all outcomes before. An outcome more than six deviations from
    its prediction counts as one at that distance. An arm whose trials fail one after another is
    left out until as much is lost without it as these failures cost, each the worst arm in place of
    this one, which is at most twice what must be lost (ski rental, Karlin et al., 1988); and less
    long where readings of the log are missing at random. Outcomes may come in any order; one older
    than the newest five hundred counts as of their time.

    Args:
        fit: The fit. Its arms are the choices, by number; times are in its unit.
        beta: β, at least 0.
        generator: Source of the draws among ties; default a fresh one with seed 0.

    Raises:
        ValueError: if β is negative.
    """

    def __init__(self, fit: PanelFit, beta: float, generator: Generator | None = None):
        check_not_negative(beta=beta)
        super().__init__(FiniteSpace(fit.choices), generator=generator)
        self.model, self.beta, self._end = fit.model, beta, fit.last_time
        # Belief at a time, and the outcomes since then, in order: time, arm, outcome.
        self._base: tuple[float | None, Belief] = fit.last_time, fit.belief
        self._outcomes: list[tuple[float, int, float]] = []
        self._newest: tuple[float | None, Belief] = self._base
        # Of arms whose trials fail: how many in a row, and what is to be lost yet without them.
        self._failures: dict[int, tuple[int, float]] = {}
        self._missing, self._correlation = fit.missing.tolist(), fit.missing_correlation

    @property
    def model_size(self) -> int:
        """Number of outcomes that are kept one by one."""
        return len(self._outcomes)

    def predict(self, t: float) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the arms' true values at a time, both ``n``.

        Args:
            t: The time, not before the newest outcome.

        Raises:
            InputDataError: if it is before the end of the log.
        """
        check_later(self._end, t)
        mean, variance = self.model.arms(self.model.predict(*self._newest, t))
        level = self.model.levels(np.array([t]))[0]
        return torch.as_tensor(level + mean), torch.as_tensor(np.sqrt(variance))

    def _bounds(self, t: float) -> tuple[Tensor, Tensor]:
        """Return upper bounds of all arms, and those of the arms that are not left out."""
        mean, deviation = self.predict(t)
        bounds = mean + math.sqrt(self.beta) * deviation
        left_out, others = [arm for arm, (_, owed) in self._failures.items() if owed > 0], bounds
        if len(left_out) < len(bounds):
            others = bounds.clone()
            others[left_out] = -math.inf
        return bounds, others

    def _index(self, t: float) -> Tensor:
        return self._bounds(t)[1]

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        super()._check_outcome(trial, observation)
        check_later(self._end, observation.X[0, -1].item())

    def _observe(self, arm: int, t: float, value: float) -> None:
        count, _ = self._failures.pop(arm, (0, 0.0))
        if math.isnan(value):
            # By Bayes: an arm that is out fails again, others do as often as in the log.
            by_chance = (1 - self._correlation) * self._missing[arm] ** count
            is_out = self._correlation / (self._correlation + by_chance)
            cost = float(self._bounds(t)[0][arm] - self.predict(t)[0].min())
            self._failures[arm] = count + 1, is_out * (count + 1) * cost
        if self._failures:
            # What each would gain in the next round is lost without it.
            bounds, others = self._bounds(t)
            lost = (bounds - others.max()).clamp(min=0.0).tolist()
            for each, (count, owed) in self._failures.items():
                self._failures[each] = count, owed - lost[each]
        if math.isnan(value):
            return
        outcome = t, arm, value
        bisect.insort(self._outcomes, outcome, key=itemgetter(0))
        if self._outcomes[-1] is outcome:
            self._newest = self._after(self._newest, outcome)
        else:
            self._newest = reduce(self._after, self._outcomes, self._base)
        if len(self._outcomes) > 2 * KEPT:
            self._base = reduce(self._after, self._outcomes[:-KEPT], self._base)
            del self._outcomes[:-KEPT]

    def _after(
        self, known: tuple[float | None, Belief], outcome: tuple[float, int, float]
    ) -> tuple[float | None, Belief]:
        """Return time and belief after an outcome."""
        t, arm, value = outcome
        level = self.model.levels(np.array([t]))[0, arm]
        belief = self.model.update(self.model.predict(*known, t), arm, value - level)
        return max(t, t if known[0] is None else known[0]), belief


def check_later(end: float | None, t: float) -> None:
    """Raise if a time is before the end of a log; None is that of independent segments."""
    if end is not None and not t >= end:
        raise InputDataError(f"Expected times from the end of the log on, {end:g}. Got {t:g}.")
