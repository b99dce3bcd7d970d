"""Upper confidence bounds with their β, and BoTorch's other analytic acquisitions, in any unit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from botorch.acquisition import (
    AcquisitionFunction,
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

from tvbo.acquisition.edge_correction import EdgeCorrectedUCB
from tvbo.models.averaged_gp import AveragedGP
from tvbo.models.covariance import prior_covariance
from tvbo.models.incremental.row_model import RowModel
from tvbo.models.streaming_gp import StreamingGP
from tvbo.rounding import power_of_two, scale_of, variance_of
from tvbo.spaces import AskContext, Box, FiniteSpace, MixedSpace

Acquisition = Callable[[Model, AskContext], AcquisitionFunction]
"""A function from the model and the ask context to a BoTorch acquisition function."""

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
        beta, unit = self.beta(ask_context.round), unit_of(model, ask_context)
        space = ask_context.search_space
        if (
            self.edge_correction
            and isinstance(model, AveragedGP)
            and isinstance(space, Box | MixedSpace)
        ):
            return EdgeCorrectedUCB(model, beta, unit, space)
        return AnyScaleUCB(model, beta=beta, unit=unit)


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
        if isinstance(self.model, RowModel) and self.posterior_transform is None:
            mean, variance = self.model.marginals(X)
            return mean / self.unit, variance.clamp_min(min_var).sqrt() / self.unit
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


def marginals(model: Model, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior means and variances of a single-outcome model, ``b x 1`` each.

    Args:
        model: The model.
        rows: ``b x 1 x d``.
    """
    if isinstance(model, RowModel):
        return model.marginals(rows)
    posterior = model.posterior(rows)
    mean = mean_of(posterior).squeeze(-2)
    return mean, variance_of(posterior, scale_of(model)).view(mean.shape)


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
    if isinstance(model, AveragedGP):
        # The same at all rows; by its kernel it would take as long as two evaluations.
        return power_of_two(model.prior_variance.item())
    transform = getattr(model, "outcome_transform", None)
    dense = isinstance(model, SingleTaskGP) and isinstance(transform, (Standardize, type(None)))
    known = isinstance(model, (RowModel, StreamingGP)) or dense
    if not known or model.num_outputs > 1 or len(model.batch_shape) > 0:
        return 1.0
    if isinstance(search_space, FiniteSpace):
        actions = search_space.choices[[0, len(search_space.choices) // 2, -1]]
    else:
        actions = torch.cat([search_space.bounds, search_space.bounds.mean(dim=0, keepdim=True)])
    rows = ask_context.rows(actions)
    # A streaming model has its prior on the choices at hand.
    if isinstance(model, StreamingGP):
        prior = model.prior_covariance(rows, rows)
    else:
        prior = prior_covariance(model, rows, rows)
    return power_of_two(prior.diagonal().max().item())


def posterior_mean(model: Model, ask_context: AskContext) -> AnyScaleMean:
    """Return the posterior mean as an acquisition function.

    Args:
        model: The model of this round.
        ask_context: The time and the context of this ask.
    """
    return AnyScaleMean(model, unit=unit_of(model, ask_context))


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


@dataclass(frozen=True)
class _TheoreticalBeta:
    r"""Base class of the schedules (16) and (19), which differ in two constants.

    Args:
        dim: Dimension ``d`` of the action space.
        delta: The bound holds with probability at least ``1 - delta``.
        side: Side ``r`` of the cube ``[0, r]^d`` that holds the actions.
        a: Constant :math:`a_1` of the smoothness assumption (10), at least 1: where (10) holds with
            a smaller constant, it holds with 1.
        b: Constant :math:`b_1` of the smoothness assumption (10).

    Raises:
        ValueError: if ``delta`` lies outside (0, 1), ``a`` below 1, or another argument is not
            positive.
    """

    dim: int
    delta: float = 0.1
    side: float = 1.0
    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(f"Expected delta in (0, 1). Got {self.delta}.")
        if min(self.dim, self.side, self.b) <= 0 or self.a < 1:
            raise ValueError(f"Expected positive dim, side and b, and a >= 1. Got {self}.")

    def _beta(self, t: int, first: float, second: float) -> float:
        d = self.dim
        inner = math.log(d * self.a * second * math.pi**2 * t**2 / self.delta)
        beta = 2 * math.log(first * math.pi**2 * t**2 / self.delta) + 2 * d * math.log(
            self.side * d * self.b * t**2 * math.sqrt(inner)
        )
        return max(0.0, beta)


class ResettingBeta(_TheoreticalBeta):
    r"""The theoretical schedule of R-GP-UCB (Bogunovic et al., 2016, equation (16)).

    .. math:: \beta_t = 2 \log \frac{2 \pi^2 t^2}{3 \delta}
        + 2d \log\Big(r d b t^2 \sqrt{\log \frac{2 d a \pi^2 t^2}{3 \delta}}\Big)
    """

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self._beta(t, first=2 / 3, second=2 / 3)


class TimeVaryingBeta(_TheoreticalBeta):
    r"""The theoretical schedule of TV-GP-UCB (Bogunovic et al., 2016, equation (19)).

    .. math:: \beta_t = 2 \log \frac{\pi^2 t^2}{2 \delta}
        + 2d \log\Big(r d b t^2 \sqrt{\log \frac{d a \pi^2 t^2}{2 \delta}}\Big)
    """

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self._beta(t, first=1 / 2, second=1 / 2)


def as_beta_schedule(beta: float | BetaSchedule) -> BetaSchedule:
    """Return a number as a constant schedule, and a schedule unchanged."""
    return beta if callable(beta) else ConstantBeta(float(beta))
