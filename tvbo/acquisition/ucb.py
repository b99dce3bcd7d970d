"""Upper confidence bounds, and the type of all acquisitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model

from tvbo.acquisition.analytic import AnyScaleUCB, unit_of
from tvbo.acquisition.beta import BetaSchedule
from tvbo.search_space import AskContext

Acquisition = Callable[[Model, AskContext], AcquisitionFunction]
"""A function from the model and the ask context to a BoTorch acquisition function."""


@dataclass(frozen=True)
class UCB:
    r"""Upper confidence bound :math:`\mu(x) + \sqrt{\beta_t}\,\sigma(x)`, β by round.

    Args:
        beta: Schedule of β by round number.
    """

    beta: BetaSchedule

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        unit = unit_of(model, ask_context)
        return AnyScaleUCB(model, beta=self.beta(ask_context.round), unit=unit)
