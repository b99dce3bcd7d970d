"""Random search."""

from __future__ import annotations

from torch import Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial


class RandomSearch(Optimizer):
    """Actions uniformly at random; learns nothing."""

    _takes_requests = True

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        return search_space.sample(self.generator)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        pass
