"""The algorithms that every backtest compares, each made of a training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.play import Algorithm
from tvbo.fitting import DriftFit, fit_drift, outcome_unit, panel_rows
from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance
from tvbo.optimizers import Optimizer, d_ucb_discount, recipes, sw_ucb_window
from tvbo.ties import first_largest

GPRule = Callable[[DriftFit, dict[str, Any], float], Optimizer]
"""Makes an optimizer of a fit, the options of the recipe, and the time at which playing begins."""


def fit_panel_drift(values: Tensor, times: Tensor, time_unit: str = "1") -> DriftFit:
    """Fit ε and noise of a panel with its own empirical covariance, as ``tvbo fit --panel`` does.

    Args:
        values: ``T x n``; NaN where there is none.
        times: ``T``.
        time_unit: Name of the unit of time.

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
        covar_module=CovarianceMatrixKernel(empirical_covariance(scaled) * unit**2),
        mean=scaled.nanmean().item() * unit,
        time_unit=time_unit,
    )


@dataclass
class PanelModel:
    """The fit of a training stretch, which the algorithms with a GP share.

    Args:
        given: A fit to use for every stretch; None fits each.
        time_unit: Name of the unit of time.
    """

    given: DriftFit | None = None
    time_unit: str = "1"
    _latest: tuple[Tensor, DriftFit] | None = field(default=None, init=False, repr=False)

    def fit(self, values: Tensor, times: Tensor) -> DriftFit:
        """Return the fit of a stretch; of the same tensor again, the same one."""
        if self.given is not None:
            return self.given
        if self._latest is None or self._latest[0] is not values:
            self._latest = values, fit_panel_drift(values, times, self.time_unit)
        return self._latest[1]


@dataclass
class FittedAlgorithm:
    """A recipe with a GP, and the fit of the training stretch as its model.

    Args:
        label: Name in the verdict.
        model: Fits the stretch.
        rule: Makes the optimizer.
        options: Further options of the recipe, such as ``beta``.
    """

    label: str
    model: PanelModel
    rule: GPRule
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def tv_gp_ucb(cls, label: str, model: PanelModel) -> FittedAlgorithm:
        """Return TV-GP-UCB with the ε of the fit."""
        return cls(label, model, _tv_gp_ucb)

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        fit = self.model.fit(values, times)
        given = {
            "choices": arm_choices(values.shape[1]),
            "covar_module": fit.covar_module,
            "mean_module": fit.mean_module,
            "noise_variance": fit.noise_variance,
            "generator": generator,
        }
        return self.rule(fit, given | dict(self.options), times[-1].item() + round_length(times))


@dataclass(frozen=True)
class BanditAlgorithm:
    """A rule without a model, which begins with the newest training value of each arm.

    So no time is spent on trying each arm once.

    Args:
        label: Name in the verdict.
        make: Makes the optimizer of the training values, the length of a round and a generator.
    """

    label: str
    make: Callable[[Tensor, float, Generator], Optimizer]

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        optimizer = self.make(values, round_length(times), generator)
        choices = arm_choices(values.shape[1])
        for arm, column in enumerate(values.mT):
            known = (~column.isnan()).nonzero()
            if len(known):
                newest = int(known[-1])
                trial = optimizer.attach(choices[arm], times[newest].item())
                optimizer.tell(trial, column[newest].item())
        return optimizer


def always_best(values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
    """Make the rule that always takes the arm with the largest mean of the training stretch."""
    means = values.nanmean(dim=0).nan_to_num(nan=-math.inf)
    choices = arm_choices(values.shape[1])
    return recipes.fixed_action(choices=choices, X=choices[first_largest(means)])


def panel_algorithms(
    names: Sequence[str] | None = None,
    *,
    horizon: int,
    model: PanelModel | None = None,
    fitted: Algorithm | None = None,
) -> dict[str, Algorithm]:
    """Return the algorithms that a backtest compares, by name.

    Args:
        names: Names of those wanted; None is all: ``fitted``, ``always_best``, ``last_best``,
            ``random``, ``sw_ucb``, ``d_ucb``, ``gp_ucb``, ``r_gp_ucb``, ``tv_gp_ucb``.
        horizon: Number of times that are played, to which SW-UCB and D-UCB are tuned as their paper
            says, for one change.
        model: Fits the stretch for the algorithms with a GP; None is :class:`PanelModel`.
        fitted: The algorithm ``fitted``; None is TV-GP-UCB with that fit.

    Raises:
        ValueError: if a name is unknown or stands twice.
    """
    model = PanelModel() if model is None else model
    known: dict[str, Algorithm] = {
        "fitted": fitted or FittedAlgorithm.tv_gp_ucb("TV-GP-UCB as fitted", model),
        "always_best": always_best,
        "last_best": BanditAlgorithm("the arm that was last the best", _last_best),
        "random": BanditAlgorithm("random arms", _random),
        "sw_ucb": BanditAlgorithm("SW-UCB", _SlidingWindow(horizon)),
        "d_ucb": BanditAlgorithm("D-UCB", _Discounted(horizon)),
        "gp_ucb": FittedAlgorithm("GP-UCB", model, _gp_ucb),
        "r_gp_ucb": FittedAlgorithm("R-GP-UCB", model, _r_gp_ucb),
        "tv_gp_ucb": FittedAlgorithm.tv_gp_ucb("TV-GP-UCB", model),
    }
    return known if names is None else {name: known[name] for name in check_names(names, known)}


def check_names(names: Sequence[str], known: Mapping[str, Any]) -> Sequence[str]:
    """Return the names; raise if there are none, or one is unknown or stands twice.

    Raises:
        ValueError: with the nearest name that is known.
    """
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"Expected algorithms by name, each once. Got {', '.join(names) or 'none'}."
        )
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.4)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(f"Expected algorithms among {', '.join(known)}. Got '{name}'.{guess}")
    return names


def arm_choices(n: int) -> Tensor:
    """Return the arms as choices: their indices in one column, ``n x 1``."""
    return torch.arange(n, dtype=torch.float64).unsqueeze(-1)


def round_length(times: Tensor) -> float:
    """Return the median gap between times."""
    return times.diff().median().item()


def _tv_gp_ucb(fit: DriftFit, options: dict[str, Any], start: float) -> Optimizer:
    return recipes.tv_gp_ucb(forgetting_rate=fit.forgetting_rate, **options)


def _gp_ucb(fit: DriftFit, options: dict[str, Any], start: float) -> Optimizer:
    return recipes.gp_ucb(**options)


def _r_gp_ucb(fit: DriftFit, options: dict[str, Any], start: float) -> Optimizer:
    return recipes.r_gp_ucb(every=fit.block_length * fit.round_length, start=start, **options)


def _last_best(values: Tensor, step: float, generator: Generator) -> Optimizer:
    return recipes.last_best(choices=arm_choices(values.shape[1]), generator=generator)


def _random(values: Tensor, step: float, generator: Generator) -> Optimizer:
    return recipes.random_search(choices=arm_choices(values.shape[1]), generator=generator)


@dataclass(frozen=True)
class _SlidingWindow:
    horizon: int

    def __call__(self, values: Tensor, step: float, generator: Generator) -> Optimizer:
        return recipes.sw_ucb(
            choices=arm_choices(values.shape[1]),
            reward_bounds=_bounds(values),
            window=sw_ucb_window(self.horizon) * step,
            generator=generator,
        )


@dataclass(frozen=True)
class _Discounted:
    horizon: int

    def __call__(self, values: Tensor, step: float, generator: Generator) -> Optimizer:
        return recipes.d_ucb(
            choices=arm_choices(values.shape[1]),
            reward_bounds=_bounds(values),
            discount=d_ucb_discount(self.horizon) ** (1 / step),
            generator=generator,
        )


def _bounds(values: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest training value."""
    known = values[~values.isnan()]
    return known.min().item(), known.max().item()
