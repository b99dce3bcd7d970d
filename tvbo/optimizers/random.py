"""Random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.recorded_trial import RecordedTrial
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

    def _load(self, trials: Sequence[RecordedTrial], state: Mapping[str, Any]) -> None:
        pass
