"""What an acquisition may know of the moment at which an action is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition.analytic import AnyScaleUCB, unit_of
from tvbo.acquisition.beta import BetaSchedule
from tvbo.columns import Columns
from tvbo.observations import Observations

if TYPE_CHECKING:
    from tvbo.acquisition.domain import Domain


@dataclass(frozen=True)
class Situation:
    """The present: round, time, context, and the observations behind the model.

    Args:
        round: Number of this ask, from 1.
        t: Time of this ask, in the user's unit.
        context: ``c``-dimensional context, or None.
        columns: How rows are laid out.
        observations: The observations that the model saw.
        domain: The actions that can be chosen; None where nothing asks for them.
        generator: Source of randomness for what an acquisition has to search by itself.
    """

    round: int
    t: float
    context: Tensor | None
    columns: Columns
    observations: Observations
    domain: Domain | None = None
    generator: Generator | None = None

    def rows(self, X: Tensor) -> Tensor:
        """Actions ``... x d`` as rows at the present time and context."""
        return self.columns.rows(X, self.t, self.context)

    def rows_observed(self) -> Tensor:
        """The observed actions as rows at the present time and context, ``n x (d + c + 1)``.

        An incumbent for expected improvement belongs here: a best outcome of an earlier time or
        another context is stale, its action's value at present is not.
        """
        return self.rows(self.observations.X[..., : self.columns.num_actions])


Acquisition = Callable[[Model, Situation], AcquisitionFunction]
"""A rule that builds a BoTorch acquisition function from the model and the present situation."""


@dataclass(frozen=True)
class UCB:
    r"""Upper confidence bound :math:`\mu(x) + \sqrt{\beta_t}\,\sigma(x)`, β by round.

    Args:
        beta: Schedule of β by round number.
    """

    beta: BetaSchedule

    def __call__(self, model: Model, situation: Situation) -> AcquisitionFunction:
        """The acquisition function for this round."""
        unit = unit_of(model, situation)
        return AnyScaleUCB(model, beta=self.beta(situation.round), unit=unit)
