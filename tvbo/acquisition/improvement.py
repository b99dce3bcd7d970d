"""Expected improvement on an incumbent."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement
from botorch.exceptions.warnings import NumericsWarning
from botorch.models.model import Model

from tvbo.acquisition.incumbent import BestObserved, Incumbent
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

    def __call__(self, model: Model, ask_context: AskContext) -> ExpectedImprovement:
        """Return the acquisition function for this round."""
        with warnings.catch_warnings():
            # BoTorch warns against EI in favor of LogEI, as the docstring of this class does.
            warnings.simplefilter("ignore", NumericsWarning)
            return ExpectedImprovement(model, best_f=self.incumbent(model, ask_context))


@dataclass(frozen=True)
class LogEI:
    r"""Logarithm of :class:`EI`, exact where that underflows (Ament et al., 2023).

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> LogExpectedImprovement:
        """Return the acquisition function for this round."""
        return LogExpectedImprovement(model, best_f=self.incumbent(model, ask_context))
