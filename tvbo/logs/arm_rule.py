"""Rules that give each arm an index, and take the arm with the largest one."""

from __future__ import annotations

import math
from abc import abstractmethod

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial


class ArmRule(Optimizer):
    """A rule that takes the arm with the largest value of an index; among ties it draws."""

    search_space: FiniteSpace

    @property
    def repeats_open_trials(self) -> bool:
        """True: an arm may be taken again before its outcome is there."""
        return True

    @abstractmethod
    def _index(self, t: float) -> Tensor:
        """Return the index of each arm, ``n``."""

    def _observe(self, arm: int, t: float, value: float) -> None:
        """Take in the outcome of a trial, NaN if it failed or expired; some learn nothing."""

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        return self.search_space.choices[[int(argmax(self._index(t), self.generator))]].clone()

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        if observation.Yvar is not None:
            raise InputDataError("Expected no Yvar, of which this rule makes no use. Got one.")

    def _learn(self, trial: Trial, observation: Observations) -> None:
        measured, value = observation.X[0, -1].item(), observation.Y.item()
        self._observe(int(self.search_space.index(trial.X)), measured, value)

    def _forget(self, trial: Trial) -> None:
        self._observe(int(self.search_space.index(trial.X)), trial.t, math.nan)
