"""The result of a fit of a panel: numbers, messages, forecasts, and a tuner's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.kernels import CovarianceMatrixKernel, TemporalDecayKernel, TemporalKernel
from tvbo.logs.forms import PanelCandidate, describe, describe_kernel
from tvbo.logs.panel_data import PanelData
from tvbo.logs.panel_mean import ModeForecast, PanelMean
from tvbo.logs.panel_search import FittedPanel
from tvbo.logs.panel_terms import NOISE_RANGE
from tvbo.logs.saved import SavedFit, to_data
from tvbo.logs.season import Season

SHORT = 20.0
"""Correlation times that a panel should span for its covariance to be known."""

ESTIMATED = (
    "Covariances, means and season are this panel's own estimates, and the bands of a forecast "
    "take the covariances as known: the fewer correlation times the panel spans, the more they are "
    "too narrow."
)


@dataclass(frozen=True)
class PanelForecast:
    """Mean and band of every arm at future times.

    Args:
        times: ``k``.
        mean: ``k x n``.
        standard_deviation: ``k x n``, of the arms' true values.
        lower: ``k x n``, the lower end of the band.
        upper: ``k x n``, its upper end.
        level: Probability of the band.
    """

    times: Tensor
    mean: Tensor
    standard_deviation: Tensor
    lower: Tensor
    upper: Tensor
    level: float


@dataclass(frozen=True, repr=False)
class PanelFit(SavedFit):
    r"""A model of a panel, :math:`y_a(t) = m_a + s_a(t) + \sum_c f_{c,a}(t) + \text{noise}`.

    Args:
        time_unit: Name of the unit of time.
        num_times: Number of times.
        mean: Common mean of the arms.
        noise_variance: σ².
        log_likelihood: Log marginal likelihood, with means and season integrated out.
        evidence: The candidates that were compared.
        chosen: Index of the one that was chosen.
        reason: Why this one was chosen, in a sentence.
        messages: Remarks on season and on the reliability of the numbers.
        mode_forecast: The distribution of the modes after the log.
    """

    time_unit: str
    num_times: int
    mean: float
    noise_variance: float
    log_likelihood: float
    evidence: list[PanelCandidate]
    chosen: int
    reason: str
    messages: list[str]
    mode_forecast: ModeForecast

    def __post_init__(self) -> None:
        """Check that the numbers go together."""
        if not 0 <= self.chosen < len(self.evidence) or self.noise_variance < 0:
            raise ValueError(
                f"Expected one of {len(self.evidence)} rows and a noise variance that is not "
                f"negative. Got {self.chosen} and {self.noise_variance}."
            )

    @property
    def last_time(self) -> float | None:
        """Last time of the log; None if its segments are independent."""
        return self.mode_forecast.last_time

    @cached_property
    def arm_means(self) -> Tensor:
        """Means of the arms, ``n``, shrunk to the common mean."""
        return torch.as_tensor(self.mode_forecast.arm_coefficients()[:, 0])

    @property
    def temporal_kernels(self) -> list[TemporalKernel]:
        """Temporal kernel of each component."""
        return self.mode_forecast.kernels

    @cached_property
    def covariances(self) -> list[Tensor]:
        """Covariance of each component over the arms, ``n x n``."""
        modes = self.mode_forecast.modes
        scales = self.mode_forecast.amplitudes
        return [torch.as_tensor((modes * scale) @ modes.T) for scale in scales]

    @property
    def season(self) -> Season | None:
        """The season, in the unit of time of the fit; None without one."""
        return self.mode_forecast.season

    @property
    def season_length(self) -> float | None:
        """Period of the season, or length of the segments; None without a season."""
        return None if self.season is None else self.season.length

    @property
    def num_arms(self) -> int:
        """Number of arms."""
        return len(self.mode_forecast.modes)

    @property
    def mean_module(self) -> PanelMean:
        """The forecast as a prior mean over rows ``[arm | time]``, for times after the log."""
        return PanelMean(self.mode_forecast)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of a recipe, such as ``recipes.tv_gp_ucb(**fit.settings())``.

        The choices are the indices of the arms, in one column; the time of an ask is in the unit of
        the fit. One exponential component gives ``forgetting_rate``, others ``temporal_kernel``.
        """
        kernels = self.temporal_kernels
        modules = [CovarianceMatrixKernel(covar) for covar in self.covariances]
        drift: dict[str, Any] = {"temporal_kernel": kernels if len(kernels) > 1 else kernels[0]}
        if len(kernels) == 1 and isinstance(kernels[0], TemporalDecayKernel):
            drift = {"forgetting_rate": kernels[0].forgetting_rate.item()}
        return {
            "choices": torch.arange(self.num_arms, dtype=torch.float64).unsqueeze(-1),
            "noise_variance": self.noise_variance,
            "mean_module": self.mean_module,
            "covar_module": modules if len(modules) > 1 else modules[0],
            **drift,
        }

    def forecast(self, times: Tensor | float, level: float = 0.95) -> PanelForecast:
        """Return mean and band of every arm at future times.

        The band is of the true values, without the noise of an observation.

        Args:
            times: ``k`` times, or one, after the log; with independent segments, times within a
                new one.
            level: Probability of the band.

        Raises:
            InputDataError: if a time is not finite, or before the end of the log.
            ValueError: if ``level`` lies outside (0, 1).
        """
        later = torch.atleast_1d(torch.as_tensor(times, dtype=torch.float64))
        if not torch.isfinite(later).all() or later.ndim != 1:
            raise InputDataError(f"Expected finite times, k. Got {later.tolist()}.")
        if not 0 < level < 1:
            raise ValueError(f"Expected level in (0, 1). Got {level}.")
        if self.last_time is not None and (later < self.last_time).any():
            raise InputDataError(
                f"Expected times from the end of the log on, {self.last_time:g}. Got "
                f"{later.min().item():g}."
            )
        rows = later.numpy()
        mean = torch.as_tensor(self.mode_forecast.means(rows))
        deviation = torch.as_tensor(np.sqrt(self.mode_forecast.variances(rows)))
        half = deviation * torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))
        return PanelForecast(later, mean, deviation, mean - half, mean + half, level)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, without covariances and state, in types of JSON."""
        names = [name for name in self.__dataclass_fields__ if name != "mode_forecast"]
        return {
            **{name: to_data(getattr(self, name)) for name in names},
            "last_time": self.last_time,
            "season_length": self.season_length,
            "arm_means": self.arm_means.tolist(),
            "temporal_kernels": [describe(kernel) for kernel in self.temporal_kernels],
            "mean_variances": [covar.diagonal().mean().item() for covar in self.covariances],
        }

    def summary(self) -> dict[str, str]:
        """Return the numbers by name, as text."""
        best = int(self.arm_means.argmax())
        drifts = [
            f"{describe_kernel(kernel, self.time_unit)}, deviation "
            f"{covar.diagonal().mean().sqrt():.4g}"
            for kernel, covar in zip(self.temporal_kernels, self.covariances, strict=True)
        ]
        return {
            "panel": f"{self.num_arms} arms, {self.num_times} times",
            "common mean": f"{self.mean:.4g}",
            "largest mean": f"{self.arm_means[best]:.4g}, arm {best}",
            "season": describe_season(self),
            "drift": " + ".join(drifts),
            "deviation of noise": f"{math.sqrt(self.noise_variance):.4g}",
        }

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.reason}"


def describe_season(fit: PanelFit) -> str:
    """Return what repeats, and its length, as text."""
    if fit.season is None:
        return "none"
    return f"{fit.season.kind} {fit.season.length:.6g} × {fit.time_unit}"


def messages_of(fit: FittedPanel, data: PanelData) -> list[str]:
    """Return warnings on the reliability of the numbers."""
    messages = []
    variance = float(fit.covariance.eigenvalues.mean())
    noise = math.exp(fit.theta[-1])
    for bound, side in zip(NOISE_RANGE, ("lower", "upper"), strict=True):
        if math.isclose(noise, bound * variance, rel_tol=1e-3):
            messages.append(f"The noise variance is at its {side} bound.")
    longest = max(_correlation_time(component.kernel) for component in fit.components)
    if data.span < SHORT * longest:
        messages.append(
            f"The panel is shorter than {SHORT:g} correlation times of its slowest component "
            f"({data.span / longest:.2g} of them): what drifts so slowly can hardly be told from "
            "the means of the arms."
        )
    if not fit.converged:
        messages.append("The maximization did not converge.")
    return [*messages, ESTIMATED]


def _correlation_time(kernel: TemporalKernel) -> float:
    """Return the lag at which the correlation has fallen to 1 / e, within a factor of two."""
    lag = 2.0 ** torch.arange(-10, 40, dtype=torch.float64)
    with torch.no_grad():
        below = kernel.correlation(lag).abs() < math.exp(-1)
    return math.inf if not below.any() else lag[below][0].item()
