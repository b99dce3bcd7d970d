"""Rules that need no model: one action always, a random one, or the last best one."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial
from tvbo.values import copies_tensors


@copies_tensors("X")
class FixedAction(Optimizer):
    """The same action in every round, such as the best one of a log; learns nothing.

    Args:
        search_space: The set of actions.
        X: The action, ``d`` or ``1 x d``, or a dict by name.
        generator: Not drawn from; default a fresh one with seed 0.
        contexts: The contexts to expect, which are ignored.

    Raises:
        InputDataError: if the action is not in the search space.
        BotorchTensorDimensionError: if it is not one action.
    """

    def __init__(
        self,
        search_space: SearchSpace,
        X: Tensor,
        generator: Generator | None = None,
        contexts: SearchSpace | None = None,
    ):
        super().__init__(search_space, generator=generator, contexts=contexts)
        self.X = search_space.read(X)

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        return self.X

    def _learn(self, trial: Trial, observation: Observations) -> None:
        pass


class RandomSearch(Optimizer):
    """Actions uniformly at random; learns nothing."""

    _takes_requests = True

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        return search_space.sample(self.generator)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        pass


class LastBest(Optimizer):
    """The action whose newest outcome is the largest.

    Each action is known by its newest outcome alone, however old that is. One without an outcome
    comes first, one whose newest trial failed or expired last. It explores nothing: it stays with
    an action until an outcome of it falls below the newest one of another. Outcomes of a log are
    given by ``attach`` and ``tell``. Among ties the generator decides.

    Args:
        search_space: The actions.
        generator: Source of the draws among ties; default a fresh one with seed 0.
        contexts: The contexts to expect, which are ignored.
    """

    search_space: FiniteSpace

    def __init__(
        self,
        search_space: FiniteSpace,
        generator: Generator | None = None,
        contexts: SearchSpace | None = None,
    ):
        super().__init__(search_space, generator=generator, contexts=contexts)
        n = len(search_space.choices)
        self._newest = torch.full((n,), math.inf, dtype=torch.float64)
        self._times = torch.full((n,), -math.inf, dtype=torch.float64)

    @property
    def repeats_open_trials(self) -> bool:
        """True: trials without an outcome count for nothing."""
        return True

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        arm = int(argmax(self._newest, self.generator))
        return self.search_space.choices[[arm]].clone()

    def _learn(self, trial: Trial, observation: Observations) -> None:
        self._set_newest(trial, observation.Y.item())

    def _forget(self, trial: Trial) -> None:
        self._set_newest(trial, -math.inf)

    def _set_newest(self, trial: Trial, Y: float) -> None:
        arm = int(self.search_space.index(trial.X))
        if trial.t >= self._times[arm]:
            self._newest[arm] = Y
            self._times[arm] = trial.t
