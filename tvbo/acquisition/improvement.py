"""Expected improvement and probability of improvement on an incumbent."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.warnings import NumericsWarning
from botorch.models.model import Model
from torch import Tensor

from tvbo.acquisition.analytic import (
    AnyScaleEI,
    AnyScaleLogEI,
    AnyScaleLogPI,
    AnyScalePI,
    unit_of,
)
from tvbo.acquisition.incumbent import BestObserved, Incumbent, MaxMean
from tvbo.spaces import AskContext


@dataclass(frozen=True)
class EI:
    r"""Expected improvement on the incumbent :math:`\xi` (Bedi et al., Section 2).

    .. math:: \sigma(x)\,\phi(z) + (\mu(x) - \xi)\,\Phi(z), \quad z = (\mu(x) - \xi) / \sigma(x)

    Far below the incumbent it underflows to 0, and so does its gradient; :class:`LogEI` has the
    same maximum and does not underflow.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context)
        unit = unit_of(model, ask_context)
        with warnings.catch_warnings():
            # BoTorch warns against EI in favor of LogEI, as the docstring of this class does.
            warnings.simplefilter("ignore", NumericsWarning)
            return AnyScaleEI(model, best_f=best / unit, unit=unit)


@dataclass(frozen=True)
class LogEI:
    r"""Logarithm of :class:`EI`, exact where that underflows (Ament et al., 2023).

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        best, unit = _value(self.incumbent, model, ask_context), unit_of(model, ask_context)
        return AnyScaleLogEI(model, best_f=best / unit, unit=unit)


@dataclass(frozen=True)
class MPI:
    r"""The "most probable improvement" of Bedi et al., Section 4: EI on :math:`\max_x \mu(x)`.

    Its formula is that of expected improvement, not of a probability, with the largest posterior
    mean of all actions as the incumbent, as in Wang and de Freitas (2014). The paper prints
    :math:`\xi = \arg\max_x \mu(x)`, an action; its posterior mean is meant. This class is the
    logarithm, which has the same maximum and does not underflow. :class:`PI` is the probability
    of improvement.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round.

        Raises:
            ValueError: if ``ask_context`` has no search space.
        """
        return LogEI(MaxMean())(model, ask_context)


@dataclass(frozen=True)
class PI:
    r"""Probability of improvement on the incumbent :math:`\xi` by a margin (Kushner, 1964).

    .. math:: \Phi\big((\mu(x) - \xi - \text{margin}) / \sigma(x)\big)

    It ignores the size of an improvement, and so prefers a small one that is almost certain to a
    large one that is less likely. Without a margin it may repeat one action forever, since at the
    best action observed the probability is about one half; with the incumbent :class:`MaxMean` it
    always does, since its maximum is then that of the posterior mean. :class:`LogPI` does not
    underflow.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
        margin: Improvement to exceed, at least 0, in the unit of the outcomes.

    Raises:
        ValueError: if the margin is negative or not finite.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)
    margin: float = 0.0

    def __post_init__(self) -> None:
        _check_margin(self.margin)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context) + self.margin
        unit = unit_of(model, ask_context)
        return AnyScalePI(model, best_f=best / unit, unit=unit)


@dataclass(frozen=True)
class LogPI:
    r"""Logarithm of :class:`PI`, exact where that underflows.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
        margin: Improvement to exceed, at least 0, in the unit of the outcomes.

    Raises:
        ValueError: if the margin is negative or not finite.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)
    margin: float = 0.0

    def __post_init__(self) -> None:
        _check_margin(self.margin)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context) + self.margin
        unit = unit_of(model, ask_context)
        return AnyScaleLogPI(model, best_f=best / unit, unit=unit)


def _check_margin(margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(f"Expected margin >= 0 and finite. Got {margin}.")


def _value(incumbent: Incumbent, model: Model, ask_context: AskContext) -> Tensor:
    # In float64: BoTorch would convert a Python number to torch's default dtype.
    return torch.tensor(incumbent(model, ask_context), dtype=torch.float64)
