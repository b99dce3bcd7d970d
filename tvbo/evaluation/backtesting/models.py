"""Models of a training stretch, which the algorithms of a backtest share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance
from tvbo.logs import DriftFit, PanelFit, fit_drift, fit_panel, outcome_unit, panel_rows
from tvbo.logs.panel_report import describe_season
from tvbo.optimizers import Optimizer, recipes


def fit_panel_drift(
    values: Tensor, times: Tensor, time_unit: str = "1", arms: Sequence[str] | None = None
) -> DriftFit:
    """Fit ε and noise of a panel with its own empirical covariance, as ``tvbo fit --panel`` does.

    Args:
        values: ``T x n``; NaN where there is none.
        times: ``T``.
        time_unit: Name of the unit of time.
        arms: Names of the arms, for errors.

    Raises:
        InputDataError: if two arms have no common time, or the log cannot be fitted.
    """
    train_X, train_Y = panel_rows(values, times)
    # Covariances are squares, which overflow or underflow for outcomes far from one.
    unit = outcome_unit(train_Y)
    scaled = values / unit
    return fit_drift(
        train_X,
        train_Y,
        covar_module=CovarianceMatrixKernel(empirical_covariance(scaled, arms) * unit**2),
        mean=scaled.nanmean().item() * unit,
        time_unit=time_unit,
        progress=False,
    )


@dataclass
class DriftModel:
    """One mean, the panel's own covariance and ε: the model of GP-UCB, R-GP-UCB and TV-GP-UCB.

    Args:
        given: A fit to use for every stretch; None fits each by :func:`fit_panel_drift`.
        time_unit: Name of the unit of time.
        arms: Names of the arms, for errors.
    """

    given: DriftFit | None = None
    time_unit: str = "1"
    arms: Sequence[str] | None = None
    _latest: tuple[Tensor, DriftFit] | None = field(default=None, init=False, repr=False)

    def fit(self, values: Tensor, times: Tensor) -> DriftFit:
        """Return the fit of a stretch; of the same tensor again, the same one."""
        if self.given is not None:
            return self.given
        if self._latest is None or self._latest[0] is not values:
            self._latest = values, fit_panel_drift(values, times, self.time_unit, self.arms)
        return self._latest[1]

    def gp_ucb(self, values: Tensor, times: Tensor, **options: Any) -> Optimizer:
        """Make GP-UCB of a training stretch, with further options of the recipe."""
        return recipes.gp_ucb(**self._settings(values, times), **options)

    def r_gp_ucb(self, values: Tensor, times: Tensor, **options: Any) -> Optimizer:
        """Make R-GP-UCB; its first block begins one step after the training stretch."""
        fit = self.fit(values, times)
        every = fit.block_length * fit.round_length
        start = times[-1].item() + round_length(times)
        given = self._settings(values, times)
        return recipes.r_gp_ucb(every=every, start=start, **given, **options)

    def tv_gp_ucb(self, values: Tensor, times: Tensor, **options: Any) -> Optimizer:
        """Make TV-GP-UCB with the ε of the fit."""
        rate = self.fit(values, times).forgetting_rate
        return recipes.tv_gp_ucb(forgetting_rate=rate, **self._settings(values, times), **options)

    def _settings(self, values: Tensor, times: Tensor) -> dict[str, Any]:
        fit = self.fit(values, times)
        return {
            "choices": arm_choices(values.shape[1]),
            "covar_module": fit.covar_module,
            "mean_module": fit.mean_module,
            "noise_variance": fit.noise_variance,
        }


@dataclass
class PanelModel:
    """Means, season and covariances of the arms, by :func:`tvbo.logs.fit_panel`.

    Times at which an arm has no reading are left out of the fit.

    Args:
        time_unit: Name of the unit of time.
        options: Further arguments of :func:`tvbo.logs.fit_panel`, such as ``origin``; by default
            drift and season are chosen among its candidates.

    Attributes:
        messages: Remarks of the last fit, such as how many times it left out.
    """

    time_unit: str = "1"
    options: Mapping[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list, init=False)
    _latest: tuple[Tensor, PanelFit] | None = field(default=None, init=False, repr=False)

    def fit(self, values: Tensor, times: Tensor) -> PanelFit:
        """Return the fit of a stretch; of the same tensor again, the same one."""
        if self._latest is None or self._latest[0] is not values:
            options = {"temporal_kernel": "auto", "drop_missing": True, **self.options}
            fit = fit_panel(values, times, time_unit=self.time_unit, **options)
            self._latest, self.messages = (values, fit), fit.messages
        return self._latest[1]

    def tv_gp_ucb(self, values: Tensor, times: Tensor, **options: Any) -> Optimizer:
        """Make TV-GP-UCB of a training stretch, with further options of the recipe."""
        return recipes.tv_gp_ucb(**self.fit(values, times).settings(), **options)

    @property
    def label(self) -> str:
        """The recipe in words, with what was fitted."""
        if self._latest is None:
            return "TV-GP-UCB as fitted"
        fit = self._latest[1]
        words = "TV-GP-UCB with a mean for each arm"
        if fit.season is not None:
            words += f", a season ({describe_season(fit)})"
        if len(fit.temporal_kernels) > 1:
            words += f", {len(fit.temporal_kernels)} time scales"
        return words


def arm_choices(n: int) -> Tensor:
    """Return the arms as choices: their indices in one column, ``n x 1``."""
    return torch.arange(n, dtype=torch.float64).unsqueeze(-1)


def round_length(times: Tensor) -> float:
    """Return the median gap between times."""
    return times.diff().median().item()
