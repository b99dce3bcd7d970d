"""The algorithms that every backtest compares, each made of a training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.exploration import tune_exploration
from tvbo.evaluation.backtesting.rivals import (
    DriftUCB,
    FixedAction,
    LastBest,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.logs import DriftFit, fit_panel
from tvbo.logs.drift_fit import fit_panel_drift
from tvbo.logs.panel_report import describe_season
from tvbo.optimizers import Optimizer, RandomSearch
from tvbo.recipes import gp_ucb, r_gp_ucb, tv_gp_ucb
from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace

Algorithm = Callable[[Tensor, Tensor, Generator], Optimizer]
"""Makes an optimizer of a training stretch: its values, ``T x n`` with NaN where there is none, its
times, ``T``, and a source of randomness. The optimizer's choices are the ``n`` arms in their order.
An attribute ``label`` of the callable, if there is one, names it in the verdict."""

LABELS = {
    "fitted": "TV-GP-UCB with a mean for each arm",
    "always_best": "always taking the best arm of training",
    "last_best": "the arm that was last the best",
    "random": "random arms",
    "sw_ucb": "SW-UCB",
    "d_ucb": "D-UCB",
    "gp_ucb": "GP-UCB",
    "r_gp_ucb": "R-GP-UCB",
    "tv_gp_ucb": "TV-GP-UCB with one rate",
}
"""Names in the verdict of the algorithms that there are."""


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
    arms: Sequence[str] | None
    tune_beta: bool
    fit_options: Mapping[str, Any]
    drift: DriftFit | None

    def __post_init__(self) -> None:
        self.label = LABELS[self.name]
        self.messages: list[str] = []

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        if self.name == "fitted":
            return self._fitted(values, times, generator)
        if self.name in ("gp_ucb", "r_gp_ucb", "tv_gp_ucb"):
            return self._with_one_rate(values, times, generator)
        choices = _choices(values)
        space = FiniteSpace(choices)
        if self.name == "always_best":
            means = values.nanmean(dim=0).nan_to_num(nan=-math.inf)
            return FixedAction(space, choices[argmax(means)])
        optimizer: Optimizer
        if self.name == "last_best":
            optimizer = LastBest(space, generator)
        elif self.name == "random":
            optimizer = RandomSearch(space, generator=generator)
        else:
            known = values[~values.isnan()]
            bounds = known.min().item(), known.max().item()
            step = _round_length(times)
            if self.name == "sw_ucb":
                window = sw_ucb_window(self.horizon) * step
                optimizer = DriftUCB(space, bounds, window, generator=generator)
            else:
                discount = d_ucb_discount(self.horizon) ** (1 / step)
                optimizer = DriftUCB(space, bounds, discount=discount, generator=generator)
        # The newest training value of each arm is known, so that it need not be tried.
        for arm, column in enumerate(values.mT):
            read = (~column.isnan()).nonzero()
            if len(read):
                newest = int(read[-1])
                trial = optimizer.attach(choices[arm], times[newest].item())
                optimizer.tell(trial, column[newest].item())
        return optimizer

    def _fitted(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make TV-GP-UCB with means, season and covariances, of the times without a gap."""
        options: dict[str, Any] = {"temporal_kernel": "auto", "drop_missing": True}
        options |= {"time_unit": self.time_unit, **self.fit_options}
        fit = fit_panel(values, times, **options)
        settings, self.messages = fit.settings(), [*fit.messages]
        self.label = LABELS["fitted"]
        if fit.season is not None:
            self.label += f", a season ({describe_season(fit)})"
        if len(fit.temporal_kernels) > 1:
            self.label += f", {len(fit.temporal_kernels)} time scales"
        if self.tune_beta:
            full = ~values.isnan().any(dim=1)
            tuned = tune_exploration(fit, values[full], times[full])
            self.messages.append(tuned.reason)
            settings["beta"] = tuned.beta
        return tv_gp_ucb(**settings, generator=generator)

    def _with_one_rate(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make an algorithm with one mean, one covariance and one ε for all arms."""
        arms = None if self.arms is None else tuple(self.arms)
        fit = self.drift or _drift_of(values, times, self.time_unit, arms)
        shared: dict[str, Any] = {
            "choices": _choices(values),
            "covar_module": fit.covar_module,
            "mean_module": fit.mean_module,
            "noise_variance": fit.noise_variance,
            "generator": generator,
        }
        if self.name == "gp_ucb":
            return gp_ucb(**shared)
        if self.name == "tv_gp_ucb":
            return tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **shared)
        # The first block begins one step after the training stretch.
        start = times[-1].item() + _round_length(times)
        return r_gp_ucb(every=fit.block_length * fit.round_length, start=start, **shared)


def panel_algorithms(
    names: Sequence[str] | None = None,
    *,
    horizon: int,
    time_unit: str = "1",
    arms: Sequence[str] | None = None,
    tune_beta: bool = False,
    fit_options: Mapping[str, Any] | None = None,
    drift: DriftFit | None = None,
) -> dict[str, Algorithm]:
    """Return the algorithms that a backtest compares, by name.

    Args:
        names: Names of those wanted; None is all: ``fitted``, ``always_best``, ``last_best``,
            ``random``, ``sw_ucb``, ``d_ucb``, ``gp_ucb``, ``r_gp_ucb``, ``tv_gp_ucb``.
        horizon: Number of times that are played, to which SW-UCB and D-UCB are tuned as their paper
            says, for one change.
        time_unit: Name of the unit of time, such as ``"5min"``.
        arms: Names of the arms, for errors.
        tune_beta: Whether β of ``fitted`` is chosen within the training stretch, by
            :func:`tvbo.evaluation.tune_exploration`, so that what is played has no part in it.
        fit_options: Further arguments of :func:`tvbo.logs.fit_panel` for ``fitted``, such as
            ``origin``; by default drift and season are chosen among its candidates.
        drift: A fit for the last three, in place of one of each training stretch; then there is no
            ``fitted``, which would be ``tv_gp_ucb``.

    Raises:
        ValueError: if there is no name, or one is unknown or stands twice.
    """
    known = [name for name in LABELS if drift is None or name != "fitted"]
    names = known if names is None else names
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"Expected algorithms by name, each once. Got {', '.join(names) or 'none'}."
        )
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"Expected algorithms among {', '.join(known)}. Got '{name}'.{guess}")
    given = horizon, time_unit, arms, tune_beta, fit_options or {}, drift
    return {name: PanelAlgorithm(name, *given) for name in names}


@lru_cache(maxsize=1)
def _drift_of(
    values: Tensor, times: Tensor, time_unit: str, arms: tuple[str, ...] | None
) -> DriftFit:
    """Fit one rate for all arms of a stretch, once for the three algorithms that have it."""
    return fit_panel_drift(values, times, time_unit, arms, progress=False)


def _choices(values: Tensor) -> Tensor:
    """Return the arms as choices: their indices in one column, ``n x 1``."""
    return torch.arange(values.shape[1], dtype=torch.float64).unsqueeze(-1)


def _round_length(times: Tensor) -> float:
    """Return the median gap between times."""
    return times.diff().median().item()
