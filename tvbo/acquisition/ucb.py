"""Upper confidence bounds: β by round, and a correction for the edge of a box."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from scipy.special import erf
from torch import Tensor

from tvbo.models.closed_form import Array, ClosedForm, Pullback
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.streaming_gp import StreamingGP
from tvbo.spaces import AskContext, Box, FiniteSpace, MixedSpace
from tvbo.spaces.search_space import SearchSpace
from tvbo.values import check_not_negative, check_positive

TINY = np.finfo(float).tiny

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
            :class:`EdgeCorrectedUCB`. It is left out for a finite set, and for models without a
            closed form, also for fantasies of one.
    """

    beta: BetaSchedule
    edge_correction: bool = False

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        beta, space = self.beta(ask_context.round), ask_context.search_space
        if (
            isinstance(space, Box | MixedSpace)
            and isinstance(model, EnsembleGP)
            and model.is_closed_form
        ):
            return EdgeCorrectedUCB(model, beta, space.whole if self.edge_correction else None)
        if (
            isinstance(space, FiniteSpace)
            and isinstance(model, StreamingGP)
            and model.now <= ask_context.t
            and not model.batch_shape
        ):
            mean, variance = model.marginals(ask_context.t)
            values = mean + beta**0.5 * variance.sqrt()
            if not torch.equal(space.rows, model.choices):
                values = values[model.choice_set.index(ask_context.rows(space.rows)[:, :-1])]
            return KnownValues(model, space, values)
        return UpperConfidenceBound(model, beta=beta)


class KnownValues(AcquisitionFunction):
    """Values of an acquisition function at each of a finite set of actions.

    Args:
        model: The model.
        search_space: The actions.
        values: The values, ``n``.
    """

    def __init__(self, model: Model, search_space: FiniteSpace, values: Tensor):
        super().__init__(model)
        self.search_space, self.values = search_space, values

    @property
    def candidates(self) -> Tensor:
        """The actions, ``n x d``."""
        return self.search_space.rows

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, at rows ``b x 1 x d'`` that begin with one of the actions.

        Raises:
            InputDataError: if they begin with another action.
        """
        return self.values[self.search_space.index(X[..., 0, : self.search_space.dim])]


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
        check_not_negative(c1=self.c1)
        check_positive(c2=self.c2)

    def __call__(self, t: int) -> float:
        """Return β in round ``t``."""
        return self.c1 * max(0.0, math.log(self.c2 * t))


@dataclass(frozen=True)
class ConstantBeta:
    """The same β in every round.

    Args:
        beta: β, at least 0.

    Raises:
        ValueError: if ``beta`` is negative or not finite.
    """

    beta: float

    def __post_init__(self) -> None:
        check_not_negative(beta=self.beta)

    def __call__(self, t: int) -> float:
        """Return β, the same in every round."""
        return self.beta


def as_beta_schedule(beta: float | BetaSchedule) -> BetaSchedule:
    """Return a number as a constant schedule, and a schedule unchanged."""
    return beta if callable(beta) else ConstantBeta(float(beta))


class ShareInside:
    """The share of what an outcome tells that is inside a box: h of :class:`EdgeCorrectedUCB`.

    Args:
        model: The model.
        search_space: The box, or a set with integers and categories.
    """

    def __init__(self, model: EnsembleGP, search_space: SearchSpace):
        bounds, parameters = search_space.bounds, search_space.parameters
        is_number = torch.ones(bounds.shape[-1], dtype=torch.bool)
        if parameters is not None:
            is_number = parameters.is_number
        self._columns = is_number.nonzero().flatten().numpy()
        self._weights = model.weights.numpy(force=True)
        # Sets of hyperparameters before columns.
        assert model.sets is not None
        rates = 1 / model.sets.lengthscales.numpy(force=True)
        self._rates = rates[:, None, self._columns]
        self._low, self._high = bounds[:, is_number].numpy(force=True)[:, None, None] * self._rates
        self._at_center = 2 * erf(0.5 * (self._high - self._low))

    def __call__(self, X: Tensor) -> Tensor:
        """Return h, ``b``, at rows ``[action | time]``, ``b x (d + 1)``."""
        return ClosedForm.apply(X.double(), self.evaluate)[0].to(X)

    def evaluate(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return h, ``1 x b``, at rows ``b x (d + 1)``, and what differentiates it."""
        from_low = X[:, self._columns] * self._rates - self._low
        to_high = self._high - self._low - from_low
        factors = (erf(to_high) + erf(from_low)) / self._at_center
        products = factors.prod(axis=-1)
        share: Array = self._weights @ products
        if not with_gradients:
            return share[None], None

        def pullback(by_share: Array) -> Array:
            slopes = np.exp(-np.square(from_low)) - np.exp(-np.square(to_high))
            # Where a factor is zero, far outside of the box, so is its slope.
            slopes *= products[..., None] / np.maximum(factors, TINY)
            slopes *= 2 / math.sqrt(math.pi) * self._rates / self._at_center
            by_columns = (self._weights @ slopes.reshape(len(slopes), -1)).reshape(len(X), -1)
            gradient = np.zeros_like(X)
            gradient[:, self._columns] = by_share[0][:, None] * by_columns
            return gradient

        return share[None], pullback


class EdgeCorrectedUCB(AnalyticAcquisitionFunction):
    r"""Upper confidence bound whose deviation counts what an outcome tells about the box.

    The posterior standard deviation is largest at the edge of a box, where there are observations
    on one side only. UCB then explores face after face, of which there are many in some dimensions,
    and outcomes there tell about little of the box (Siivola et al., 2018). Before anything is
    known, an outcome at :math:`x` reduces the variance at :math:`z` in proportion to
    :math:`\kappa(x, z)^2`. So with :math:`\kappa` the correlation over actions and :math:`c` the
    center of the box :math:`B`, this is

    .. math:: \mu(x) + \sqrt{\beta\, h(x)}\, \sigma(x), \quad
        h(x) = \frac{\int_B \kappa(x, z)^2\, dz}{\int_B \kappa(c, z)^2\, dz}.

    For the RBF kernel, :math:`h` is a product of error functions. It is :math:`2^{-d}` at a corner
    where lengthscales are short, and near 1 everywhere where they are long. For Matérn-5/2, whose
    :math:`h` is not a product, that of the RBF kernel with the same lengthscales is taken. It is
    averaged over the sets of hyperparameters. The columns of a category have no edge, and are left
    out.

    Values and gradients are in closed form, which a search uses without PyTorch
    (``value_and_gradient``).

    Args:
        model: The model.
        beta: β.
        search_space: The box, or a set with integers and categories; None for no correction.
    """

    def __init__(self, model: EnsembleGP, beta: float, search_space: SearchSpace | None):
        super().__init__(model)
        self.beta = beta
        self._moments = model.moments()
        self.share = None if search_space is None else ShareInside(model, search_space)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, at rows ``[action | time]``, ``b x 1 x (d + 1)``."""
        return ClosedForm.apply(X.squeeze(-2).double(), self._stacked)[0].to(X)

    def value_and_gradient(self, X: Array) -> tuple[Array, Array]:
        """Return the values ``b`` at rows ``b x (d + 1)``, and gradients ``b x (d + 1)``."""
        values, pullback = self._stacked(X, with_gradients=True)
        assert pullback is not None
        return values[0], pullback(np.ones_like(values))

    def _stacked(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return values ``1 x b`` and what differentiates them, or None."""
        moments, from_moments = self._moments(X, with_gradients)
        mean, variance = moments
        share, from_share = np.ones((1, len(X))), None
        if self.share is not None:
            share, from_share = self.share.evaluate(X, with_gradients)
        bonus = np.sqrt(self.beta * share[0] * variance)
        if from_moments is None:
            return (mean + bonus)[None], None

        def pullback(by_values: Array) -> Array:
            by_logarithm = 0.5 * bonus * by_values
            by_moments = np.concatenate([by_values, by_logarithm / variance])
            gradient = from_moments(by_moments)
            return gradient if from_share is None else gradient + from_share(by_logarithm / share)

        return (mean + bonus)[None], pullback
