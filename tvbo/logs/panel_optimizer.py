"""A tuner of the arms of a panel, which goes on from the end of its log."""

from __future__ import annotations

import bisect
import math

import numpy as np
import torch
from torch import Generator, Tensor

from tvbo.logs.panel_dynamics import Belief, PanelModel
from tvbo.optimizers.base import Optimizer
from tvbo.quadratic_model import Array
from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial
from tvbo.values import check_not_negative

RARE, FREQUENT = 0.05, 0.99
"""Shares of missing readings: up to the first a failure counts in full, and none counts as more
than the second."""

KEPT = 500
"""Newest outcomes that may still be joined by one of an earlier time."""


class PanelUCB(Optimizer):
    r"""Upper confidence bounds over the arms of a panel, by the filter of its fit.

    At time ``t`` it takes the arm with the largest :math:`\mu_a(t) + \sqrt{\beta} \sigma_a(t)`, of
    its true value given the log and all outcomes before. An outcome more than six deviations from
    its prediction counts as one at that distance. An arm whose trials fail one after another is
    left out, for twice as long after each, until it has an outcome; where arms often have no
    reading, more failures in a row count as one. Outcomes may come in any order; one older than the
    newest five hundred counts as of their time.

    Args:
        model: The model. Its arms are the choices, by number; times are in its unit.
        belief: What the log says of its state.
        last_time: The time of that belief; None if what comes is independent of the log.
        round_length: The usual gap between times.
        missing: Share of the times at which each arm had no reading in the log, ``n``.
        beta: β, at least 0.
        generator: Source of the draws among ties; default a fresh one with seed 0.

    Raises:
        ValueError: if β is negative.
    """

    search_space: FiniteSpace

    def __init__(
        self,
        model: PanelModel,
        belief: Belief,
        last_time: float | None,
        round_length: float,
        missing: Array,
        beta: float,
        generator: Generator | None = None,
    ):
        check_not_negative(beta=beta)
        arms = torch.arange(model.coefficients.shape[1], dtype=torch.float64).unsqueeze(-1)
        super().__init__(FiniteSpace(arms), generator=generator)
        self.model, self.beta, self.round_length = model, beta, round_length
        # Belief at a time, and the outcomes since then, in order: time, arm, outcome.
        self._base: tuple[float | None, Belief] = last_time, belief
        self._outcomes: list[tuple[float, int, float]] = []
        self._newest: tuple[float | None, Belief] = self._base
        self._failures: dict[int, tuple[int, float]] = {}
        # How unlikely a failure is by chance, as a share of what one counts for.
        usual = np.log(missing.clip(RARE, FREQUENT)) / math.log(RARE)
        self._surprise: list[float] = usual.tolist()

    @property
    def repeats_open_trials(self) -> bool:
        """True: an arm may be taken again before its outcome is there."""
        return True

    @property
    def model_size(self) -> int:
        """Number of outcomes that are kept one by one."""
        return len(self._outcomes)

    def predict(self, t: float) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the arms' true values at a time, both ``n``.

        Args:
            t: The time, not before the newest outcome.
        """
        mean, variance = self.model.arms(self.model.predict(*self._newest, t))
        level = self.model.levels(np.array([t]))[0]
        return torch.as_tensor(level + mean), torch.as_tensor(np.sqrt(variance))

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        mean, deviation = self.predict(t)
        bound = mean + math.sqrt(self.beta) * deviation
        paused = [arm for arm, (_, until) in self._failures.items() if t < until]
        if len(paused) < len(bound):
            bound[paused] = -math.inf
        return self.search_space.choices[[int(argmax(bound, self.generator))]].clone()

    def _learn(self, trial: Trial, observation: Observations) -> None:
        arm = int(self.search_space.index(trial.X))
        self._failures.pop(arm, None)
        outcome = trial.t, arm, observation.Y.item()
        if not self._outcomes or trial.t >= self._outcomes[-1][0]:
            self._outcomes.append(outcome)
            self._newest = self._after(self._newest, outcome)
        else:
            bisect.insort(self._outcomes, outcome)
            self._newest = self._base
            for each in self._outcomes:
                self._newest = self._after(self._newest, each)
        if len(self._outcomes) > 2 * KEPT:
            for each in self._outcomes[:-KEPT]:
                self._base = self._after(self._base, each)
            del self._outcomes[:-KEPT]

    def _forget(self, trial: Trial) -> None:
        arm = int(self.search_space.index(trial.X))
        count = self._failures.get(arm, (0, 0.0))[0] + 1
        # The first time may be chance: the arm may be taken at the next time again.
        length = 2.0 ** (self._surprise[arm] * count - 1) - 0.5
        self._failures[arm] = count, trial.t + self.round_length * length

    def _after(
        self, known: tuple[float | None, Belief], outcome: tuple[float, int, float]
    ) -> tuple[float, Belief]:
        """Return time and belief after an outcome."""
        t, arm, value = outcome
        level = self.model.levels(np.array([t]))[0, arm]
        belief = self.model.update(self.model.predict(*known, t), arm, value - level)
        return max(t, t if known[0] is None else known[0]), belief
