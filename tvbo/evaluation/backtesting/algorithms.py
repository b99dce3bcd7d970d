"""The algorithms that every backtest compares, each made of a training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Generator, Tensor

from tvbo.evaluation.backtesting.models import (
    DriftModel,
    PanelModel,
    arm_choices,
    round_length,
)
from tvbo.evaluation.backtesting.play import Algorithm
from tvbo.evaluation.exploration import Exploration, tune_exploration
from tvbo.optimizers import (
    DiscountedUCB,
    FixedAction,
    LastBest,
    Optimizer,
    SlidingWindowUCB,
    d_ucb_discount,
    recipes,
    sw_ucb_window,
)
from tvbo.rounding import first_largest
from tvbo.spaces import FiniteSpace


@dataclass
class FittedAlgorithm:
    """A recipe with a GP whose model is that of the training stretch.

    Args:
        make: Makes the optimizer of the training values, their times, and options of the recipe.
        name: Name in the verdict; or the model, whose label it is.
        options: Options of the recipe, such as ``beta``.
    """

    make: Callable[..., Optimizer]
    name: str | PanelModel
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        return self.make(values, times, generator=generator, **self.options)

    @property
    def label(self) -> str:
        """Name in the verdict."""
        return self.name if isinstance(self.name, str) else self.name.label

    @property
    def messages(self) -> list[str]:
        """Remarks of the model on the latest stretch."""
        return [] if isinstance(self.name, str) else self.name.messages

    @classmethod
    def of_panel(cls, model: PanelModel) -> FittedAlgorithm:
        """Return TV-GP-UCB with means, season and covariances of the arms."""
        return cls(model.tv_gp_ucb, model)


@dataclass
class TunedAlgorithm:
    """TV-GP-UCB of :class:`PanelModel`, its exploration chosen within the training stretch.

    By :func:`tvbo.evaluation.tune_exploration`, so what is played afterwards has no part in it.

    Args:
        model: Fits the stretch.

    Attributes:
        exploration: What was chosen on the latest stretch, and why.
    """

    model: PanelModel
    exploration: Exploration | None = field(default=None, init=False)

    def __call__(self, values: Tensor, times: Tensor, generator: Generator) -> Optimizer:
        """Make the optimizer of a training stretch."""
        fit = self.model.fit(values, times)
        full = ~values.isnan().any(dim=1)
        self.exploration = tune_exploration(fit, values[full], times[full])
        beta = self.exploration.beta
        return self.model.tv_gp_ucb(values, times, generator=generator, beta=beta)

    @property
    def label(self) -> str:
        """Name in the verdict."""
        return self.model.label

    @property
    def messages(self) -> list[str]:
        """Remarks of the model, and why this exploration."""
        reasons = [] if self.exploration is None else [self.exploration.reason]
        return [*self.model.messages, *reasons]


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
    return FixedAction(FiniteSpace(choices), choices[first_largest(means)])


def panel_algorithms(
    names: Sequence[str] | None = None,
    *,
    horizon: int,
    model: DriftModel | None = None,
    fitted: Algorithm | None = None,
) -> dict[str, Algorithm]:
    """Return the algorithms that a backtest compares, by name.

    Args:
        names: Names of those wanted; None is all: ``fitted``, ``always_best``, ``last_best``,
            ``random``, ``sw_ucb``, ``d_ucb``, ``gp_ucb``, ``r_gp_ucb``, ``tv_gp_ucb``.
        horizon: Number of times that are played, to which SW-UCB and D-UCB are tuned as their paper
            says, for one change.
        model: Fits the stretch for the last three; None is :class:`DriftModel`.
        fitted: The algorithm ``fitted``; None is TV-GP-UCB with the fit of :class:`PanelModel`.

    Raises:
        ValueError: if a name is unknown or stands twice.
    """
    model = DriftModel() if model is None else model
    known: dict[str, Algorithm] = {
        "fitted": fitted or FittedAlgorithm.of_panel(PanelModel(model.time_unit)),
        "always_best": always_best,
        "last_best": BanditAlgorithm("the arm that was last the best", _last_best),
        "random": BanditAlgorithm("random arms", _random),
        "sw_ucb": BanditAlgorithm("SW-UCB", _SlidingWindow(horizon)),
        "d_ucb": BanditAlgorithm("D-UCB", _Discounted(horizon)),
        "gp_ucb": FittedAlgorithm(model.gp_ucb, "GP-UCB"),
        "r_gp_ucb": FittedAlgorithm(model.r_gp_ucb, "R-GP-UCB"),
        "tv_gp_ucb": FittedAlgorithm(model.tv_gp_ucb, "TV-GP-UCB with one rate"),
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


def _last_best(values: Tensor, step: float, generator: Generator) -> Optimizer:
    return LastBest(FiniteSpace(arm_choices(values.shape[1])), generator)


def _random(values: Tensor, step: float, generator: Generator) -> Optimizer:
    return recipes.random_search(choices=arm_choices(values.shape[1]), generator=generator)


@dataclass(frozen=True)
class _SlidingWindow:
    horizon: int

    def __call__(self, values: Tensor, step: float, generator: Generator) -> Optimizer:
        return SlidingWindowUCB(
            FiniteSpace(arm_choices(values.shape[1])),
            window=sw_ucb_window(self.horizon) * step,
            reward_bounds=_bounds(values),
            generator=generator,
        )


@dataclass(frozen=True)
class _Discounted:
    horizon: int

    def __call__(self, values: Tensor, step: float, generator: Generator) -> Optimizer:
        return DiscountedUCB(
            FiniteSpace(arm_choices(values.shape[1])),
            discount=d_ucb_discount(self.horizon) ** (1 / step),
            reward_bounds=_bounds(values),
            generator=generator,
        )


def _bounds(values: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest training value."""
    known = values[~values.isnan()]
    return known.min().item(), known.max().item()
