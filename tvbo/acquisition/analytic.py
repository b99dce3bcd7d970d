"""BoTorch's analytic acquisitions, independent of the unit of the outcomes."""

from __future__ import annotations

from typing import Any, cast

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
from botorch.posteriors import GPyTorchPosterior, Posterior
from torch import Tensor

from tvbo.models.covariance import prior_covariance
from tvbo.models.incremental import RowPosterior
from tvbo.models.scale import power_of_two, scale_of, variance_of
from tvbo.models.streaming_gp import StreamingGP
from tvbo.search_space import AskContext, FiniteSpace


class AnyScale(AnalyticAcquisitionFunction):
    """Analytic acquisition that gives the same choices for outcomes in any unit.

    BoTorch raises variances to 1e-12, and ``optimize_acqf`` stops at a gradient of 1e-5, whatever
    the unit of the outcomes. Here variances have a floor relative to the prior variance, and mean
    and standard deviation are divided by ``unit``.

    Args:
        model: A single-outcome model.
        *args: Further arguments of the BoTorch acquisition.
        unit: The number that mean and standard deviation are divided by; a power of two causes no
            rounding. Arguments in the unit of the outcomes, such as ``best_f``, are divided by it
            before they are passed.
        **kwargs: Further arguments of the BoTorch acquisition.
    """

    def __init__(self, model: Model, *args: Any, unit: float = 1.0, **kwargs: Any):
        super().__init__(model, *args, **kwargs)
        self.unit = unit
        self._scale = scale_of(model)

    def _mean_and_sigma(
        self, X: Tensor, compute_sigma: bool = True, min_var: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        self.to(X)
        posterior = self.model.posterior(X, posterior_transform=self.posterior_transform)
        mean = mean_of(posterior).squeeze(-2) / self.unit
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


def mean_of(posterior: Posterior) -> Tensor:
    """Return the mean of a posterior, ``... x q x 1``."""
    # BoTorch's base class does not declare it; all posteriors of single-outcome models have one.
    return cast(GPyTorchPosterior, posterior).mean


def unit_of(model: Model, ask_context: AskContext) -> float:
    """Return the unit of an acquisition: a power of two near the prior standard deviation.

    The prior variance is evaluated at the corners and the center of a box, and at the first, the
    middle and the last choice of a finite set. The unit is 1 for a model whose prior cannot be
    read.

    Args:
        model: The model of this round.
        ask_context: The time and the context of this ask.
    """
    search_space = ask_context.search_space
    if search_space is None:
        return 1.0
    transform = getattr(model, "outcome_transform", None)
    dense = isinstance(model, SingleTaskGP) and isinstance(transform, (Standardize, type(None)))
    known = isinstance(model, (RowPosterior, StreamingGP)) or dense
    if not known or model.num_outputs > 1 or len(model.batch_shape) > 0:
        return 1.0
    if isinstance(search_space, FiniteSpace):
        actions = search_space.choices[[0, len(search_space.choices) // 2, -1]]
    else:
        actions = torch.cat([search_space.bounds, search_space.bounds.mean(dim=0, keepdim=True)])
    rows = ask_context.rows(actions)
    return power_of_two(prior_covariance(model, rows, rows).diagonal().max().item())


def posterior_mean(model: Model, ask_context: AskContext) -> AnyScaleMean:
    """Return the posterior mean as an acquisition function.

    Args:
        model: The model of this round.
        ask_context: The time and the context of this ask.
    """
    return AnyScaleMean(model, unit=unit_of(model, ask_context))
