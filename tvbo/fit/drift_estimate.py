"""How fast the function of an optimizer drifts, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tvbo.fit.density import Array
from tvbo.fit.drift import describe_form, half_life
from tvbo.fit.fitted_forms import Posterior
from tvbo.fit.model_fitter import ModelFitter
from tvbo.quadratic_model import STEP, QuadraticModel

LEAST_UNIT = 1e-3
"""Least number to which the steps of differences are relative."""


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
    fitted, model = fitter.fitted, fitter.last_model
    assert model is not None
    kernels, rate = model.temporal_kernels, model.forgetting_rate
    lag, interval = half_life(kernels), None
    posterior, mode = fitter.posteriors()[fitted.chosen], fitted.modes[fitted.chosen]
    if mode is not None and len(mode) == len(posterior.default):
        interval = _interval(lag, posterior, mode)
    return DriftEstimate(
        form=describe_form(kernels),
        half_life=lag,
        half_life_interval=interval,
        forgetting_rate=None if rate is None else rate.item(),
        time_unit=time_unit,
    )


def _interval(lag: float, posterior: Posterior, mode: Array) -> tuple[float, float] | None:
    """Return the 95 % interval of the half-life by the curvature of the log posterior at a fit.

    Args:
        lag: The half-life of the fit.
        posterior: The posterior.
        mode: Where the fit ended, ``p``.
    """
    # Steps are relative, since variances and rates that are not transformed may be small.
    units = np.maximum(np.abs(mode), LEAST_UNIT)

    def negative(x: Array) -> tuple[float, Array]:
        value, gradient = posterior.negative(mode + units * x)
        return value, units * gradient

    def log_half_life(x: Array) -> float:
        return math.log(half_life(list(posterior.temporal_kernels(mode + units * x))))

    steps, ends = STEP * np.eye(len(mode)), ((posterior.bounds.T - mode) / units).T
    slopes = np.array([(log_half_life(x) - log_half_life(-x)) / (2 * STEP) for x in steps])
    quadratic = QuadraticModel.by_differences(negative, ends.tolist(), np.zeros(len(mode)))
    is_known = np.isfinite(slopes).all() and slopes.any()
    if quadratic is None or not is_known or slopes[quadratic.held].any():
        return None
    spread = 1.96 * math.sqrt(slopes @ np.linalg.solve(quadratic.hessian, slopes))
    return float(lag * np.exp(-spread)), float(lag * np.exp(spread))
