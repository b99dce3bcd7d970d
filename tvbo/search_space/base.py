"""A set of actions, and the ask for which the best of them is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Generator, Tensor

from tvbo.observations import InputLayout, Observations, check_finite, check_last_dimension


class SearchSpace(Protocol):
    """A set of actions."""

    dim: int
    bounds: Tensor
    """Smallest and largest value of each column, ``2 x d``."""

    def maximize(
        self, acq_function: AcquisitionFunction, ask_context: AskContext, generator: Generator
    ) -> Tensor:
        """Return the action, ``1 x d``, that maximizes an acquisition function.

        Args:
            acq_function: A function of rows ``b x 1 x (d + c + 1)``.
            ask_context: Gives the time and the context, which are held fixed.
            generator: Source of randomness.
        """

    def sample(self, generator: Generator) -> Tensor:
        """Return one action, ``1 x d``, drawn uniformly at random."""

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X``, ``n x d``, as actions of this set, undoing rounding to single precision.

        Raises:
            InputDataError: if a row is no action of this set.
        """


@dataclass(frozen=True)
class AskContext:
    """What is known when an action is chosen: round, time, context, and the observations.

    Args:
        round: Number of this ask, from 1.
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


def check_action(X: Tensor, dim: int) -> None:
    """Raise unless ``X`` is a finite ``n x d`` tensor."""
    if X.ndim != 2:
        raise BotorchTensorDimensionError(
            f"Expected X of shape n x {dim}. Got X.shape={tuple(X.shape)}."
        )
    check_last_dimension("X", X, dim)
    check_finite("X", X)
