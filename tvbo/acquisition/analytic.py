"""BoTorch's analytic acquisitions for outcomes of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from botorch.acquisition import (
    ExpectedImprovement,
    LogExpectedImprovement,
    PosteriorMean,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)
from botorch.acquisition.analytic import AnalyticAcquisitionFunction, LogProbabilityOfImprovement
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from torch import Tensor

from tvbo.models.covariance import prior_covariance
from tvbo.models.incremental import RowPosterior
from tvbo.models.raw import scale_of
from tvbo.models.scale import power_of_two, variance_of
from tvbo.models.streaming_gp import StreamingGP

if TYPE_CHECKING:
    from tvbo.search_space import AskContext


class AnyScale(AnalyticAcquisitionFunction):
    """An analytic acquisition that is the same for outcomes in any unit.

    BoTorch raises variances to 1e-12, and ``optimize_acqf`` stops at a gradient of 1e-5, whatever
    the unit of the outcomes. Here variances are floored relative to the prior's, and mean and
    standard deviation are divided by ``unit``.

    Args:
        model: As in BoTorch, and so the others.
        unit: The unit of the values, in that of the outcomes; a power of two rounds nothing. What
            has the unit of the outcomes, such as ``best_f``, is to be given in it.
    """

    def __init__(self, model: Model, *args, unit: float = 1.0, **kwargs):
        super().__init__(model, *args, **kwargs)
        self.unit = unit
        self._scale = scale_of(model)

    def _mean_and_sigma(
        self, X: Tensor, compute_sigma: bool = True, min_var: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        self.to(X)
        posterior = self.model.posterior(X, posterior_transform=self.posterior_transform)
        mean = posterior.mean.squeeze(-2) / self.unit
        if not compute_sigma:
            return mean, None
        variance = variance_of(posterior, self._scale).clamp_min(min_var)
        return mean, variance.sqrt().view(mean.shape) / self.unit


class AnyScaleUCB(AnyScale, UpperConfidenceBound):
    """:class:`botorch.acquisition.UpperConfidenceBound`."""


class AnyScaleMean(AnyScale, PosteriorMean):
    """:class:`botorch.acquisition.PosteriorMean`."""


class AnyScaleEI(AnyScale, ExpectedImprovement):
    """:class:`botorch.acquisition.ExpectedImprovement`."""


class AnyScaleLogEI(AnyScale, LogExpectedImprovement):
    """:class:`botorch.acquisition.LogExpectedImprovement`."""


class AnyScalePI(AnyScale, ProbabilityOfImprovement):
    """:class:`botorch.acquisition.ProbabilityOfImprovement`."""


class AnyScaleLogPI(AnyScale, LogProbabilityOfImprovement):
    """:class:`botorch.acquisition.analytic.LogProbabilityOfImprovement`."""


def unit_of(model: Model, ask_context: AskContext) -> float:
    """The unit for an acquisition: a power of two of the order of the prior standard deviation.

    That is looked up at the corners and in the middle of a box, and for some of a finite set. For a
    model whose prior is not known here, it is 1.

    Args:
        model: The model of this round.
        ask_context: The present.
    """
    search_space = ask_context.search_space
    if search_space is None:
        return 1.0
    transform = getattr(model, "outcome_transform", None)
    dense = isinstance(model, SingleTaskGP) and isinstance(transform, (Standardize, type(None)))
    known = isinstance(model, (RowPosterior, StreamingGP)) or dense
    if not known or model.num_outputs > 1 or len(model.batch_shape) > 0:
        return 1.0
    choices = getattr(search_space, "choices", None)
    if choices is not None:
        actions = choices[[0, len(choices) // 2, -1]]
    else:
        actions = torch.cat([search_space.bounds, search_space.bounds.mean(dim=0, keepdim=True)])
    rows = ask_context.rows(actions)
    return power_of_two(prior_covariance(model, rows, rows).diagonal().max().item())


def posterior_mean(model: Model, ask_context: AskContext) -> AnyScaleMean:
    """The posterior mean as an acquisition.

    Args:
        model: The model of this round.
        ask_context: The present.
    """
    return AnyScaleMean(model, unit=unit_of(model, ask_context))
