"""What is known when an action is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from tvbo.spaces.observations import InputLayout, Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.values import copies_tensors


@copies_tensors("context")
@dataclass(frozen=True)
class AskContext:
    """What is known when an action is chosen: round, time, context, and the observations.

    Args:
        round: Number of this trial, from 1, where those attached count as well.
        t: Time of this ask, in the user's unit.
        context: ``c``-dimensional context, or None.
        layout: How rows are laid out.
        observations: The observations that the model was conditioned on.
        search_space: The actions that can be chosen; None where nothing asks for them.
        generator: Source of randomness for acquisitions that draw or search.
    """

    round: int
    t: float
    context: Tensor | None
    layout: InputLayout
    observations: Observations
    search_space: SearchSpace | None = None
    generator: Generator | None = None

    def rows(self, X: Tensor) -> Tensor:
        """Return actions ``... x d`` as rows at the present time and context."""
        return self.layout.rows(X, self.t, self.context)

    def rows_observed(self) -> Tensor:
        """Return the observed actions as rows at the present time and context, ``n x (d + c + 1)``.

        Compute the incumbent of an improvement from these rows: the best outcome of an earlier time
        or of another context is stale, but the posterior mean at its action now is not.
        """
        return self.rows(self.observations.X[..., : self.layout.num_actions])
