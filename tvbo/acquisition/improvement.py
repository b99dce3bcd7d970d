"""Acquisitions that ask how much, or how likely, an action improves on an incumbent."""

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
from tvbo.search_space import AskContext


@dataclass(frozen=True)
class EI:
    r"""Expected improvement on the incumbent :math:`\xi` (Bedi et al., Section 2).

    .. math:: \sigma(x)\,\phi(z) + (\mu(x) - \xi)\,\Phi(z), \quad z = (\mu(x) - \xi) / \sigma(x)

    Far below the incumbent it underflows to 0, and its gradient with it: :class:`LogEI` has the
    same maximum and does not.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """The acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context)
        unit = unit_of(model, ask_context)
        with warnings.catch_warnings():
            # BoTorch advises against it; whoever asks for EI by name has read the docstring.
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
        """The acquisition function for this round."""
        best, unit = _value(self.incumbent, model, ask_context), unit_of(model, ask_context)
        return AnyScaleLogEI(model, best_f=best / unit, unit=unit)


@dataclass(frozen=True)
class MPI:
    r"""The "most probable improvement" of Bedi et al., Section 4: EI on :math:`\max_x \mu(x)`.

    By its formula it is no probability but expected improvement, with the largest posterior mean of
    all actions for an incumbent, as in Wang and de Freitas (2014). The paper prints
    :math:`\xi = \arg\max_x \mu(x)`, an action; its value is meant. Given as the logarithm, which
    has the same maximum and does not underflow. For the probability of improvement, see
    :class:`PI`.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """The acquisition function for this round.

        Raises:
            ValueError: if ``ask_context`` has no search space.
        """
        return LogEI(MaxMean())(model, ask_context)


@dataclass(frozen=True)
class PI:
    r"""Probability of improvement on the incumbent :math:`\xi` by a margin (Kushner, 1964).

    .. math:: \Phi\big((\mu(x) - \xi - \text{margin}) / \sigma(x)\big)

    It asks how likely, not how much, and so prefers a small step that is sure to a large one that
    is not. Without a margin it may repeat one action for good: at the best action known the
    probability is about one half. With :class:`MaxMean` for an incumbent that is certain: its
    maximum is then that of the posterior mean. Where it underflows, use :class:`LogPI`.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
        margin: How much better is better, at least 0, in the unit of the outcomes.

    Raises:
        ValueError: if the margin is negative or not finite.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)
    margin: float = 0.0

    def __post_init__(self):
        _check_margin(self.margin)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """The acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context) + self.margin
        unit = unit_of(model, ask_context)
        return AnyScalePI(model, best_f=best / unit, unit=unit)


@dataclass(frozen=True)
class LogPI:
    r"""Logarithm of :class:`PI`, exact where that underflows.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
        margin: As in :class:`PI`.

    Raises:
        ValueError: see there.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)
    margin: float = 0.0

    def __post_init__(self):
        _check_margin(self.margin)

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """The acquisition function for this round."""
        best = _value(self.incumbent, model, ask_context) + self.margin
        unit = unit_of(model, ask_context)
        return AnyScaleLogPI(model, best_f=best / unit, unit=unit)


def _check_margin(margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(f"Expected margin >= 0 and finite. Got {margin}.")


def _value(incumbent: Incumbent, model: Model, ask_context: AskContext) -> Tensor:
    # In double precision: BoTorch would round a number to torch's default.
    return torch.tensor(incumbent(model, ask_context), dtype=torch.float64)
