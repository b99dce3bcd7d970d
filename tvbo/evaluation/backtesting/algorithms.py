"""The algorithms that every backtest compares, each made of a training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.rivals import (
    BestOfHour,
    DriftUCB,
    LastBest,
    WeightedMeans,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import DriftFit, PanelFit, fit_panel
from tvbo.logs.block_length import block_length
from tvbo.logs.drift_result import constant_mean
from tvbo.logs.panel_report import describe_season
from tvbo.optimizers import Optimizer, RandomSearch
from tvbo.recipes import gp_ucb, r_gp_ucb, tv_gp_ucb
from tvbo.spaces import FiniteSpace
from tvbo.spaces.times import duration, parse_timedelta

Algorithm = Callable[[Tensor, Tensor, Generator], Optimizer]
"""Makes an optimizer of a training stretch: its values, ``T x n`` with NaN where there is none, its
times, ``T``, and a source of randomness. The optimizer's choices are the ``n`` arms in their order.
An attribute ``label`` of the callable, if there is one, names it in the verdict."""

LABELS = {
    "fitted": "the fitted tuner",
    "untuned": "the fitted tuner with two standard deviations",
    "always_best": "always taking the best arm of training",
    "last_best": "the arm that was last the best",
    "random": "random arms",
    "best_of_hour": "the best arm of the hour",
    "weighted_means": "exponentially weighted means",
    "independent": "AR(1) with noise by arm",
    "vector": "a ridge VAR(1)",
    "sw_ucb": "SW-UCB",
    "d_ucb": "D-UCB",
    "gp_ucb": "GP-UCB",
    "r_gp_ucb": "R-GP-UCB",
    "tv_gp_ucb": "TV-GP-UCB with one rate",
}
"""Names in the verdict of the algorithms that there are."""

OF_A_PANEL = ("fitted", "untuned", "best_of_hour", "weighted_means", "independent", "vector")
"""Algorithms that need a panel to learn from."""


@dataclass(eq=False)
class PanelAlgorithm:
    """One of the algorithms of :func:`panel_algorithms`, whose arguments are as there.

    Attributes:
        label: Name in the verdict; of ``fitted``, with what was fitted to the latest stretch.
        messages: Remarks of that fit.
    """

    name: str
    horizon: int
    time_unit: str
    fit_options: Mapping[str, Any]
    drift: DriftFit | None

    def __post_init__(self) -> None:
        self.label = LABELS[self.name]
        self.messages: list[str] = []

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        choices = _choices(values)
        space, step = FiniteSpace(choices), _round_length(times)
        known = values[~values.isnan()]
        bounds = known.min().item(), known.max().item()
        optimizer: Optimizer
        match self.name:
            case "fitted" | "untuned" | "independent" | "vector":
                return self._fitted(values, times, generator)
            case "gp_ucb" | "r_gp_ucb" | "tv_gp_ucb":
                return self._with_one_rate(values, times, generator)
            case "weighted_means":
                return WeightedMeans(space, values, generator)
            case "always_best":
                return BestOfHour(space, values, times, math.inf, generator)
            case "best_of_hour":
                unit = duration(self.time_unit)
                if unit is None:
                    self.label = "the best arm of training, since times have no hours"
                day = math.inf if unit is None else parse_timedelta("day", "1D") / unit
                return BestOfHour(space, values, times, day, generator)
            case "last_best":
                optimizer = LastBest(space, generator)
            case "sw_ucb":
                window = sw_ucb_window(self.horizon) * step
                optimizer = DriftUCB(space, bounds, window, generator=generator)
            case "d_ucb":
                discount = d_ucb_discount(self.horizon) ** (1 / step)
                optimizer = DriftUCB(space, bounds, discount=discount, generator=generator)
            case _:
                optimizer = RandomSearch(space, generator=generator)
        # The newest training value of each arm is known, so that it need not be tried.
        for arm, column in enumerate(values.mT):
            read = (~column.isnan()).nonzero()
            if len(read):
                newest = int(read[-1])
                trial = optimizer.attach(choices[arm], times[newest].item())
                optimizer.tell(trial, column[newest].item())
        return optimizer

    def _fitted(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the tuner of a fitted panel, or of one form of drift alone."""
        options = {"time_unit": self.time_unit, **self.fit_options}
        if self.name in ("independent", "vector"):
            options["temporal_kernel"] = self.name
        fit = _panel_fit(values, times, **options)
        self.label = LABELS[self.name]
        if self.name == "untuned":
            return fit.optimizer(beta=4.0, generator=generator)
        if self.name == "fitted":
            self.messages = [*fit.messages, fit.reason, fit.tuning.reason]
            season = "" if fit.season is None else f", season ({describe_season(fit)})"
            self.label += f" ({fit.form}{season})"
        return fit.optimizer(generator=generator)

    def _with_one_rate(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make an algorithm with one mean, one covariance and one ε for all arms."""
        shared: dict[str, Any] = {"choices": _choices(values), "generator": generator}
        if self.drift is not None:
            shared |= replace(self.drift, comparison=None).settings()
            rate = shared.pop("forgetting_rate")
            length = self.drift.block_length * self.drift.round_length
        else:
            exponential = {"temporal_kernel": "exponential", "season": None}
            panel = _panel_fit(values, times, **{"time_unit": self.time_unit, **exponential})
            (kernel,), (covariance,) = panel.temporal_kernels, panel.covariances
            rate = kernel.forgetting_rate.item()
            step = panel.round_length
            length = block_length(1 - (1 - rate) ** step, self.horizon) * step
            # Means that differ are a part of the covariance about one mean.
            means = panel.arm_means - panel.arm_means.mean()
            shared |= {
                "covar_module": CovarianceMatrixKernel(covariance + means.outer(means)),
                "mean_module": constant_mean(panel.arm_means.mean().item()),
                "noise_variance": panel.noise_variances.mean().item(),
            }
        if self.name == "gp_ucb":
            return gp_ucb(**shared)
        if self.name == "tv_gp_ucb":
            return tv_gp_ucb(forgetting_rate=rate, **shared)
        # The first block begins one step after the training stretch.
        start = times[-1].item() + _round_length(times)
        return r_gp_ucb(every=length, start=start, **shared)


def panel_algorithms(
    names: Sequence[str] | None = None,
    *,
    horizon: int,
    time_unit: str = "1",
    fit_options: Mapping[str, Any] | None = None,
    drift: DriftFit | None = None,
) -> dict[str, Algorithm]:
    """Return the algorithms that a backtest compares, by name.

    Args:
        names: Names of those wanted; None is all: ``fitted``, ``untuned``, ``always_best``,
            ``last_best``, ``random``, ``best_of_hour``, ``weighted_means``, ``independent``,
            ``vector``, ``sw_ucb``, ``d_ucb``, ``gp_ucb``, ``r_gp_ucb``, ``tv_gp_ucb``.
        horizon: Number of times that are played, to which SW-UCB and D-UCB are tuned as their paper
            says, for one change.
        time_unit: Name of the unit of time, such as ``"5min"``.
        fit_options: Further arguments of :func:`tvbo.logs.fit_panel` for ``fitted``, ``untuned``,
            ``independent`` and ``vector``, such as ``origin``.
        drift: A fit for the last three, in place of one of each training stretch; then there are
            none of those that learn from a panel.

    Raises:
        ValueError: if there is no name, or one is unknown or stands twice.
    """
    known = [name for name in LABELS if drift is None or name not in OF_A_PANEL]
    names = known if names is None else names
    if not names or len(set(names)) < len(names):
        raise ValueError(f"Expected algorithms, each once. Got {', '.join(names) or 'none'}.")
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"Expected algorithms among {', '.join(known)}. Got '{name}'.{guess}")
    given = horizon, time_unit, fit_options or {}, drift
    return {name: PanelAlgorithm(name, *given) for name in names}


@lru_cache(maxsize=4)
def _panel_fit(values: Tensor, times: Tensor, **options: Any) -> PanelFit:
    """Fit the panel of a stretch, once for the algorithms that share a fit."""
    return fit_panel(values, times, **options)


def _choices(values: Tensor) -> Tensor:
    """Return the arms as choices: their indices in one column, ``n x 1``."""
    return torch.arange(values.shape[1], dtype=torch.float64).unsqueeze(-1)


def _round_length(times: Tensor) -> float:
    """Return the median gap between times."""
    return times.diff().median().item()
