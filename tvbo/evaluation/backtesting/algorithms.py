"""The algorithms that every backtest compares, each made of a training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.play import Algorithm
from tvbo.evaluation.exploration import Exploration, tune_exploration
from tvbo.logs import DriftFit, fit_panel
from tvbo.logs.panel_drift import fit_panel_drift
from tvbo.logs.panel_report import describe_season
from tvbo.optimizers import Optimizer
from tvbo.optimizers.constant_rules import FixedAction, LastBest
from tvbo.optimizers.drift_bandits import (
    DiscountedUCB,
    SlidingWindowUCB,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.recipes import gp_ucb, r_gp_ucb, random_search, tv_gp_ucb
from tvbo.rounding import first_largest
from tvbo.spaces import FiniteSpace

Make = Callable[[Tensor, Tensor, Generator], Optimizer]


@dataclass(frozen=True)
class LabeledAlgorithm:
    """An algorithm with its name in the verdict."""

    label: str
    make: Make

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        return self.make(values, times, generator)


class FittedAlgorithm:
    """TV-GP-UCB with means, season and covariances of the arms, by :func:`tvbo.logs.fit_panel`.

    Times at which an arm has no reading are left out of the fit.

    Args:
        tune_beta: Whether β is chosen within the training stretch by
            :func:`tvbo.evaluation.tune_exploration`, so that what is played has no part in it.
        **options: Arguments of :func:`tvbo.logs.fit_panel`.

    Attributes:
        label: Name in the verdict, with what was fitted to the latest stretch.
        messages: Remarks of that fit.
        exploration: The β that was chosen there, and why.
    """

    def __init__(self, tune_beta: bool = False, **options: Any):
        self._tune_beta = tune_beta
        self._options: dict[str, Any] = {"temporal_kernel": "auto", "drop_missing": True} | options
        self.label = "TV-GP-UCB as fitted"
        self.messages: list[str] = []
        self.exploration: Exploration | None = None

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        fit = fit_panel(values, times, **self._options)
        self.messages = [*fit.messages]
        self.label = "TV-GP-UCB with a mean for each arm"
        if fit.season is not None:
            self.label += f", a season ({describe_season(fit)})"
        if len(fit.temporal_kernels) > 1:
            self.label += f", {len(fit.temporal_kernels)} time scales"
        settings = fit.settings()
        if self._tune_beta:
            full = ~values.isnan().any(dim=1)
            self.exploration = tune_exploration(fit, values[full], times[full])
            self.messages.append(self.exploration.reason)
            settings["beta"] = self.exploration.beta
        return tv_gp_ucb(**settings, generator=generator)


class DriftAlgorithms:
    """GP-UCB, R-GP-UCB and TV-GP-UCB with one mean, one covariance and ε for all arms.

    Args:
        fit: A fit for every stretch; None fits each by :func:`fit_panel_drift`.
        time_unit: Name of the unit of time.
        arms: Names of the arms, for errors.
    """

    def __init__(self, fit: DriftFit | None, time_unit: str, arms: Sequence[str] | None):
        self._fit = fit
        self._is_given = fit is not None
        self._time_unit = time_unit
        self._arms = arms
        self._stretch: Tensor | None = None

    def gp_ucb(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make GP-UCB of a training stretch."""
        _, settings = self._settings(values, times)
        return gp_ucb(**settings, generator=generator)

    def r_gp_ucb(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make R-GP-UCB; its first block begins one step after the training stretch."""
        fit, settings = self._settings(values, times)
        every = fit.block_length * fit.round_length
        start = times[-1].item() + _round_length(times)
        return r_gp_ucb(every=every, start=start, **settings, generator=generator)

    def tv_gp_ucb(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make TV-GP-UCB with the ε of the fit."""
        fit, settings = self._settings(values, times)
        rate = fit.forgetting_rate
        return tv_gp_ucb(forgetting_rate=rate, **settings, generator=generator)

    def _settings(self, values: Tensor, times: Tensor) -> tuple[DriftFit, dict[str, Any]]:
        """Return the fit of a stretch, which is kept for the next call, and what recipes take."""
        if not self._is_given and self._stretch is not values:
            self._stretch = values
            self._fit = fit_panel_drift(values, times, self._time_unit, self._arms, progress=False)
        assert self._fit is not None
        return self._fit, {
            "choices": _choices(values),
            "covar_module": self._fit.covar_module,
            "mean_module": self._fit.mean_module,
            "noise_variance": self._fit.noise_variance,
        }


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
        tune_beta: Whether β of ``fitted`` is chosen within the training stretch.
        fit_options: Further arguments of :func:`tvbo.logs.fit_panel` for ``fitted``, such as
            ``origin``; by default drift and season are chosen among its candidates.
        drift: A fit for the last three, in place of one of each training stretch; then there is no
            ``fitted``, which would be ``tv_gp_ucb``.

    Raises:
        ValueError: if there is no name, or one is unknown or stands twice.
    """
    shared = DriftAlgorithms(drift, time_unit, arms)

    def sw_ucb(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        return SlidingWindowUCB(
            FiniteSpace(_choices(values)),
            reward_bounds=_bounds(values),
            window=sw_ucb_window(horizon) * _round_length(times),
            generator=generator,
        )

    def d_ucb(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        return DiscountedUCB(
            FiniteSpace(_choices(values)),
            reward_bounds=_bounds(values),
            discount=d_ucb_discount(horizon) ** (1 / _round_length(times)),
            generator=generator,
        )

    known: dict[str, Algorithm] = {
        "always_best": _always_best,
        "last_best": LabeledAlgorithm("the arm that was last the best", _informed(_last_best)),
        "random": LabeledAlgorithm("random arms", _informed(_random)),
        "sw_ucb": LabeledAlgorithm("SW-UCB", _informed(sw_ucb)),
        "d_ucb": LabeledAlgorithm("D-UCB", _informed(d_ucb)),
        "gp_ucb": LabeledAlgorithm("GP-UCB", shared.gp_ucb),
        "r_gp_ucb": LabeledAlgorithm("R-GP-UCB", shared.r_gp_ucb),
        "tv_gp_ucb": LabeledAlgorithm("TV-GP-UCB with one rate", shared.tv_gp_ucb),
    }
    if drift is None:
        fitted = FittedAlgorithm(tune_beta, time_unit=time_unit, **fit_options or {})
        known = {"fitted": fitted, **known}
    if names is None:
        return known
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"Expected algorithms by name, each once. Got {', '.join(names) or 'none'}."
        )
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"Expected algorithms among {', '.join(known)}. Got '{name}'.{guess}")
    return {name: known[name] for name in names}


def _always_best(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
    """Make the rule that always takes the arm with the largest mean of the training stretch."""
    means = values.nanmean(dim=0).nan_to_num(nan=-math.inf)
    choices = _choices(values)
    return FixedAction(FiniteSpace(choices), choices[first_largest(means)])


def _last_best(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
    return LastBest(FiniteSpace(_choices(values)), generator)


def _random(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
    return random_search(choices=_choices(values), generator=generator)


def _informed(make: Make) -> Make:
    """Return a rule that knows the newest training value of each arm, which it need not try."""

    def informed(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        optimizer = make(values, times, generator)
        choices = _choices(values)
        for arm, column in enumerate(values.mT):
            known = (~column.isnan()).nonzero()
            if len(known):
                newest = int(known[-1])
                trial = optimizer.attach(choices[arm], times[newest].item())
                optimizer.tell(trial, column[newest].item())
        return optimizer

    return informed


def _choices(values: Tensor) -> Tensor:
    """Return the arms as choices: their indices in one column, ``n x 1``."""
    return torch.arange(values.shape[1], dtype=torch.float64).unsqueeze(-1)


def _round_length(times: Tensor) -> float:
    """Return the median gap between times."""
    return times.diff().median().item()


def _bounds(values: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest training value."""
    known = values[~values.isnan()]
    return known.min().item(), known.max().item()
