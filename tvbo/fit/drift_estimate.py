"""How fast the function of an optimizer drifts, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.closures.core import NdarrayOptimizationClosure
from botorch.optim.utils import get_parameters_and_bounds
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from numpy.typing import NDArray

from tvbo.fit.drift import describe_form, half_life
from tvbo.fit.log_posterior import FORGETTING_RATE, TEMPORAL_LENGTHSCALE, LogPosterior
from tvbo.fit.model_fitter import ModelFitter
from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.models.closed_form import temporal_kernel
from tvbo.quadratic_model import STEP, QuadraticModel

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DriftEstimate:
    """How fast the function of an optimizer drifts.

    Args:
        form: Form of the drift, such as ``"exponential decay"``.
        half_life: Lag at which the correlation over time has fallen to one half, in units of time;
            infinite without drift, NaN for several temporal kernels, or where it never falls that
            far.
        half_life_interval: The 95 % interval of ``half_life`` if form and kernel are right; None
            where nothing was learned of it, or it is at a bound.
        forgetting_rate: ε per unit of time; None where the drift is not exponential.
        time_unit: Unit of time, such as ``"1h"``; None where times are numbers.
    """

    form: str
    half_life: float
    half_life_interval: tuple[float, float] | None
    forgetting_rate: float | None
    time_unit: str | None

    def __str__(self) -> str:
        unit = "" if self.time_unit is None else f" x {self.time_unit}"
        words = f"{self.form}, half-life {self.half_life:.4g}{unit}"
        if self.half_life_interval is not None:
            low, high = self.half_life_interval
            words += f" (95 % interval {low:.4g} to {high:.4g})"
        rate = self.forgetting_rate
        return words if rate is None else f"{words}, forgetting rate {rate:.4g}"


def estimate_drift(fitter: ModelFitter, time_unit: str | None) -> DriftEstimate:
    """Return how fast the newest model of a fitter drifts.

    Args:
        fitter: The fitter.
        time_unit: Unit of time, such as ``"1h"``.
    """
    fitted = fitter.fitted
    if fitted.sets is not None:
        # In closed form where there is one, without what GPyTorch imports for the other.
        kernels: Sequence[TemporalKernel]
        kernels = [temporal_kernel(fitted.sets.rates[0], fitted.sets.is_smooth[0])]
    else:
        assert fitter.last_model is not None
        kernels = fitter.last_model.temporal_kernels
    interval = None
    if fitted.newest is not None:
        by = _by_closed_form if fitter.is_default else _by_gradients
        interval = _interval(half_life(kernels), *by(fitter))
    rate = None
    if len(kernels) == 1 and isinstance(kernels[0], TemporalDecayKernel):
        rate = kernels[0].forgetting_rate.item()
    return DriftEstimate(
        form=describe_form(kernels),
        half_life=half_life(kernels),
        half_life_interval=interval,
        forgetting_rate=rate,
        time_unit=time_unit,
    )


def _interval(
    half_life: float, quadratic: QuadraticModel | None, slopes: Array
) -> tuple[float, float] | None:
    """Return the 95 % interval of the half-life by the curvature of the log posterior at a fit.

    Args:
        half_life: That of the fit.
        quadratic: The Hessian of the negative log posterior by the parameters.
        slopes: Derivatives of the logarithm of the half-life by the parameters.
    """
    if quadratic is None or not np.isfinite(slopes).all() or slopes[quadratic.held].any():
        return None
    if not slopes.any():
        return None
    spread = 1.96 * math.sqrt(slopes @ np.linalg.solve(quadratic.hessian, slopes))
    return float(half_life * np.exp(-spread)), float(half_life * np.exp(spread))


def _by_closed_form(fitter: ModelFitter) -> tuple[QuadraticModel | None, Array]:
    """Return Hessian and derivatives of a default model, by the logarithms of its parameters."""
    chosen = fitter.fitted.chosen
    posterior, values = fitter.posteriors()[chosen], fitter.fitted.values[chosen]
    assert isinstance(posterior, LogPosterior)
    assert values is not None
    mode = posterior.logarithms(values)
    slopes = np.zeros(len(mode))
    # The half-life is proportional to a lengthscale, or to 1 / ρ.
    for name in (FORGETTING_RATE, TEMPORAL_LENGTHSCALE):
        slopes[posterior.places.get(name, slice(0))] = 1.0
    return posterior.quadratic_at(mode), slopes


def _by_gradients(fitter: ModelFitter) -> tuple[QuadraticModel | None, Array]:
    """Return Hessian and derivatives of any model, by its parameters in certain units."""
    model = fitter.last_model
    assert model is not None
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    parameters, bounds = get_parameters_and_bounds(mll, requires_grad=True)
    closure = NdarrayOptimizationClosure(get_loss_closure_with_grads(mll, parameters), parameters)
    counts = [parameter.numel() for parameter in parameters.values()]
    each = [bounds.get(name, (-math.inf, math.inf)) for name in parameters]
    ends = np.repeat(np.array(each, dtype=float).reshape(-1, 2), counts, axis=0).T
    mode, num = closure.state, len(model.train_targets)
    # Of what is bounded and not transformed, such as variances and rates, steps are relative.
    units = np.where(np.isfinite(ends[0]) & (mode != 0), np.abs(mode), 1.0)

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = closure(mode + units * x)
        return num * float(value), num * units * gradient

    def log_half_life(x: Array) -> float:
        closure.state = mode + units * x
        return math.log(half_life(model.temporal_kernels))

    mll.train()
    with fast_computations(log_prob=False):
        quadratic = QuadraticModel.by_differences(
            negative, ((ends - mode) / units).T.tolist(), np.zeros(len(mode))
        )
    mll.eval()
    steps = STEP * np.eye(len(mode))
    slopes = [(log_half_life(x) - log_half_life(-x)) / (2 * STEP) for x in steps]
    closure.state = mode
    return quadratic, np.array(slopes)
