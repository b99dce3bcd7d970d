"""Forecasts of a panel after the log, in numbers and as a mean module."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.means import Mean
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.logs.panel_coefficients import Posterior
from tvbo.logs.panel_data import PanelData, regressors
from tvbo.logs.panel_search import FittedPanel
from tvbo.logs.panel_terms import in_unit_of_time
from tvbo.logs.season import Season
from tvbo.quadratic_model import Array


@dataclass(frozen=True)
class ModeForecast:
    """The distribution of the modes of a panel at later times.

    Args:
        season: The season; None if there is none. All times are in the user's unit.
        kernels: Temporal kernels of the components.
        amplitudes: ``c x n``, variances of the components in the modes.
        modes: ``n x n``, the modes as columns.
        posterior: Coefficients, and state at ``last_time``.
        last_time: Last time of the log; None if its segments are independent, so that no state
            persists.
    """

    season: Season | None
    kernels: list[TemporalKernel]
    amplitudes: Array
    modes: Array
    posterior: Posterior
    last_time: float | None

    def __post_init__(self) -> None:
        """Check the shapes."""
        n = len(self.modes)
        states = sum(kernel.num_states for kernel in self.kernels)
        width = regressors(self.season, np.zeros(1)).shape[1] + states
        expected = [(len(self.kernels), n), (n, n), (n, width), (n, width, width)]
        posterior = self.posterior
        arrays = (self.amplitudes, self.modes, posterior.mean, posterior.covariance)
        if n < 1 or [array.shape for array in arrays] != expected:
            raise ValueError(
                f"Expected arrays of shapes {expected}. Got {[array.shape for array in arrays]}."
            )

    def weights(self, times: Array) -> Array:
        """Return the weights of coefficients and state in the forecast, ``len(times) x (q + s)``.

        Times before the end of the log have the state of its end.
        """
        columns = regressors(self.season, times)
        readings = []
        for kernel in self.kernels:
            if self.last_time is None:
                readings.append(np.zeros((len(times), kernel.num_states)))
            else:
                ages = torch.as_tensor(times - self.last_time).clamp_min(0.0)
                with torch.no_grad():
                    readings.append((kernel.observation @ kernel.transition(ages)).numpy())
        return np.hstack([columns, *readings])

    def arm_coefficients(self) -> Array:
        """Return the posterior means of coefficients and state of each arm, ``n x (q + s)``."""
        return self.modes @ self.posterior.mean

    def means(self, times: Array) -> Array:
        """Return the means of the arms, ``len(times) x n``."""
        means: Array = self.weights(times) @ self.arm_coefficients().T
        return means

    def variances(self, times: Array) -> Array:
        """Return the variances of the arms, ``len(times) x n``."""
        weights = self.weights(times)
        known = np.einsum(
            "tq,nqr,tr->tn", weights, self.posterior.covariance, weights, optimize=True
        )
        start = weights.shape[1] - sum(kernel.num_states for kernel in self.kernels)
        for kernel, amplitudes in zip(self.kernels, self.amplitudes, strict=True):
            states = slice(start, start + kernel.num_states)
            prior = kernel.stationary_covariance().detach().numpy()
            kept = np.einsum("ts,sr,tr->t", weights[:, states], prior, weights[:, states])
            fresh = np.maximum(1.0 - kept, 0.0)
            known += fresh[:, None] * amplitudes
            start = states.stop
        variances: Array = known.clip(min=0.0) @ (self.modes**2).T
        return variances


def mode_forecast(
    fit: FittedPanel, data: PanelData, unit: float, gap: float, is_segmented: bool
) -> ModeForecast:
    """Return the distribution of the modes after a panel.

    Args:
        fit: A model of it.
        data: The panel.
        unit: Unit of its values, in the user's.
        gap: Unit of its times, in the user's.
        is_segmented: Whether its segments are independent of what follows.
    """
    terms = fit.terms(data)
    model, variances = fit.coefficient_model(data)
    for component, part in zip(fit.components, terms.parts, strict=True):
        component.set(fit.theta[part][:-1])
    kernels = [in_unit_of_time(component.kernel, 1 / gap) for component in fit.components]
    posterior = model.posterior(variances)
    mean, covariance = posterior.mean * unit, posterior.covariance * unit**2
    if is_segmented:
        # No state persists.
        first = mean.shape[1] - int(terms.ends[-1])
        mean[:, first:] = 0.0
        covariance[:, first:] = covariance[:, :, first:] = 0.0
    return ModeForecast(
        None if fit.season is None else fit.season.in_unit_of_time(1 / gap),
        [kernel.requires_grad_(False) for kernel in kernels],
        terms.amplitudes(fit.theta) * unit**2,
        fit.covariance.modes,
        Posterior(mean, covariance),
        None if is_segmented else float(data.groups[0].times[-1]) * gap,
    )


class PanelMean(Mean):
    """The forecast of every arm as a prior mean over rows ``[arm | time]``.

    Mean and season of the arm, and what persists of its state at the end of the log. At times
    before that, the state is that of the end. It has no parameters.

    Args:
        forecast: The forecast of the modes.
    """

    def __init__(self, forecast: ModeForecast):
        super().__init__()
        self._forecast = forecast
        self.register_buffer("coefficients", torch.as_tensor(forecast.arm_coefficients()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of rows ``... x 2``, ``...``."""
        times, place = torch.unique(x[..., -1].detach().double().cpu(), return_inverse=True)
        weights = torch.as_tensor(self._forecast.weights(times.numpy())).to(self.coefficients)
        arms = x[..., 0].round().long()
        mean: Tensor = (weights[place.to(arms.device)] * self.coefficients[arms]).sum(-1)
        return mean.to(x)
