"""An acquisition function over the actions that probably satisfy all constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from torch import Tensor
from torch.nn.functional import softplus

from tvbo.acquisition.at_present import actions_of
from tvbo.acquisition.goals import Goals
from tvbo.acquisition.thompson import DrawnValues
from tvbo.randomness import default_generator
from tvbo.spaces import AskContext

PENALTY = 100.0
"""What a shortfall of 1 in log probability costs, in ranges of the acquisition function."""

SMOOTHNESS = 0.001
"""Shortfall within which the penalty sets in: gradients must not jump where the maximum is."""


class ChanceConstrained(AcquisitionFunction):
    r"""An acquisition function minus a penalty where constraints may not hold.

    With :math:`p(x)` the probability that all constraints hold at an action now, the action that
    maximizes :math:`\alpha` among those with :math:`p(x) \geq p_0` is found as the maximum of

    .. math:: \alpha(x) - w \max(0, \log p_0 - \log p(x)),

    an exact penalty whose corner is rounded. Where no action reaches :math:`p_0`, its maximum is
    near that of :math:`p`.

    Args:
        acq_function: :math:`\alpha`, over rows ``b x q x d``; each action of a batch is penalized.
        models: The model of each outcome.
        goals: The constraints.
        ask_context: The present; its actions say how far :math:`\alpha` ranges, on which ``w``
            depends.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        models: Sequence[Model],
        goals: Goals,
        ask_context: AskContext,
    ):
        super().__init__(acq_function.model)
        self.acq_function = acq_function
        self.raw_samples = getattr(acq_function, "raw_samples", None)
        # Not registered: acquisition functions are moved to the device of ``X`` at each call.
        self._parts = tuple(models), goals
        actions = actions_of(ask_context, default_generator(ask_context.generator))
        with torch.no_grad():
            values = acq_function(ask_context.rows(actions).unsqueeze(-2))
        values = values[values.isfinite()]
        spread = (values.max() - values.min()).item() if len(values) else 0.0
        self.weight = PENALTY * (spread or 1.0)

    def forward(self, X: Tensor) -> Tensor:
        """Return the penalized values, ``b``, at rows ``b x q x d``."""
        value: Tensor = self.acq_function(X) - self.weight * self._shortfall(X)
        return value

    def _shortfall(self, X: Tensor) -> Tensor:
        models, goals = self._parts
        feasibility = goals.log_feasibility(models, X.reshape(-1, 1, X.shape[-1]))
        missing = math.log(goals.min_feasibility) - feasibility.view(X.shape[:-1])
        return SMOOTHNESS * softplus(missing / SMOOTHNESS).sum(dim=-1)


def constrained(
    acq_function: AcquisitionFunction,
    models: Sequence[Model],
    goals: Goals,
    ask_context: AskContext,
) -> AcquisitionFunction:
    """Return an acquisition function under the constraints.

    Args:
        acq_function: An acquisition function of the first outcome, or values drawn of it.
        models: The model of each outcome.
        goals: The constraints.
        ask_context: The present.
    """
    if not isinstance(acq_function, DrawnValues):
        return ChanceConstrained(acq_function, models, goals, ask_context)
    # Its values are known at the candidates alone.
    rows = ask_context.rows(acq_function.candidates).unsqueeze(-2)
    with torch.no_grad():
        feasibility = goals.log_feasibility(models, rows)
    # One that is as probable as can be, where none is probable enough.
    enough = min(math.log(goals.min_feasibility), feasibility.max().item())
    values = acq_function.values.masked_fill(feasibility < enough, -torch.inf)
    return DrawnValues(acq_function.model, acq_function.candidates, values)
