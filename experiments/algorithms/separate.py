"""One optimizer for each context, the baseline of contextual bandits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Generator, Tensor

from tvbo.optimizers import Optimizer, Trial
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace


class SeparateContexts(Optimizer):
    """Independent optimizers, one for each context (Krause, Ong, 2011, Section 6).

    The other baseline of that section, one model of all contexts together, needs no class: declare
    no contexts, and :func:`tvbo.run` asks without them.

    Args:
        choices: The actions, ``n x d``.
        contexts: All contexts, ``m x c``.
        make: Function from a generator to the optimizer of one context, itself without contexts.
        generator: Source of every random choice; None is a fresh one with seed 0.

    Attributes:
        loops: The optimizers of the contexts asked for so far, by the index of the context.
    """

    contexts: FiniteSpace

    def __init__(
        self,
        choices: Tensor,
        contexts: Tensor,
        make: Callable[[Generator], Optimizer],
        generator: Generator | None = None,
    ):
        declared = FiniteSpace(contexts, name="context")
        super().__init__(FiniteSpace(choices), generator=generator, contexts=declared)
        self.make = make
        self.loops: dict[int, Optimizer] = {}
        self._inner: dict[int, Trial] = {}

    @property
    def model_size(self) -> int:
        """Number of observations held, over all contexts."""
        return sum(loop.model_size for loop in self.loops.values())

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        place = int(self.contexts.index(context))
        if place not in self.loops:
            self.loops[place] = self.make(self.generator)
        trial = self.loops[place].ask(t)
        # The number of the trial that the caller is about to open.
        self._inner[self.num_trials + 1] = trial
        return trial.X

    def _learn(self, trial: Trial, observation: Observations) -> None:
        loop = self.loops[int(self.contexts.index(trial.context))]
        loop.tell(self._inner.pop(trial.id), observation.Y)
