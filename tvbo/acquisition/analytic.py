"""Upper confidence bounds, and their β by round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models.model import Model

from tvbo.acquisition.edge_correction import EdgeCorrectedUCB
from tvbo.models.averaged_gp import AveragedGP
from tvbo.spaces import AskContext, Box, MixedSpace

Acquisition = Callable[[Model, AskContext], AcquisitionFunction]
"""A function from the model and the ask context to a BoTorch acquisition function.

The model is one of standardized outcomes, as are those of the ask context."""

BetaSchedule = Callable[[int], float]
"""A function from the round, 1, 2, ..., to β."""


@dataclass(frozen=True)
class UCB:
    r"""Upper confidence bound :math:`\mu(x) + \sqrt{\beta_t}\,\sigma(x)`, β by round.

    Args:
        beta: Schedule of β by round number.
        edge_correction: Whether an outcome near the edge of a box counts for less, as in
            :class:`EdgeCorrectedUCB`. It is left out for a finite set, and for models other than
            :class:`tvbo.models.AveragedGP`, also for fantasies of one.
    """

    beta: BetaSchedule
    edge_correction: bool = False

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        beta, space = self.beta(ask_context.round), ask_context.search_space
        if (
            self.edge_correction
            and isinstance(model, AveragedGP)
            and isinstance(space, Box | MixedSpace)
        ):
            return EdgeCorrectedUCB(model, beta, space)
        return UpperConfidenceBound(model, beta=beta)


@dataclass(frozen=True)
class LogBeta:
    r"""The practical schedule :math:`\beta_t = c_1 \log(c_2 t)`, clamped at 0.

    Bogunovic et al. (2016), Section 5: ``c1=0.8, c2=4`` on synthetic data, ``c1=0.8, c2=0.4`` on
    temperatures. The clamp matters in the first rounds, where :math:`c_2 t < 1`.

    Args:
        c1: Factor :math:`c_1`, at least 0.
        c2: Factor :math:`c_2` of the round, above 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    c1: float = 0.8
    c2: float = 4.0

    def __post_init__(self) -> None:
        if self.c1 < 0 or self.c2 <= 0:
            raise ValueError(f"Expected c1 >= 0 and c2 > 0. Got c1={self.c1}, c2={self.c2}.")

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self.c1 * max(0.0, math.log(self.c2 * t))


@dataclass(frozen=True)
class ConstantBeta:
    """The same β in every round.

    Args:
        beta: β, at least 0.

    Raises:
        ValueError: if ``beta`` is negative.
    """

    beta: float

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"Expected beta >= 0. Got {self.beta}.")

    def __call__(self, t: int) -> float:
        """Return β, the same in every round."""
        return self.beta


def as_beta_schedule(beta: float | BetaSchedule) -> BetaSchedule:
    """Return a number as a constant schedule, and a schedule unchanged."""
    return beta if callable(beta) else ConstantBeta(float(beta))
