"""The exploration of a tuner of a panel, chosen by playing later parts of the training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tvbo.evaluation.run import run
from tvbo.kernels import TemporalKernel
from tvbo.logs import PanelFit, fit_panel
from tvbo.recipes import tv_gp_ucb
from tvbo.test_functions import PanelProblem

MULTIPLIERS = (0.0, 0.06, 0.2, 0.6, 2.0)
"""Multipliers of the posterior standard deviation: shares 0, .03, .1, .3 and 1 of two of them."""

FIRST_SHARE = 0.5
"""Share of the log before the first fold."""

BLOCKS = 4
"""Blocks of each fold, for standard errors."""

Play = Callable[[PanelFit, float, Tensor, Tensor], Tensor]
"""From a fit, β, values ``T x n`` and times ``T`` to the regret of each round, ``T``."""


@dataclass(frozen=True)
class Exploration:
    """A multiplier of the posterior standard deviation, and why it was chosen.

    Args:
        multiplier: The multiplier.
        mean_regret: Mean regret on the folds, by multiplier.
        difference: Mean regret less that of the best multiplier, by multiplier.
        standard_error: Standard error of that difference over blocks of successive rounds.
        reason: The choice in a sentence.
    """

    multiplier: float
    mean_regret: dict[float, float]
    difference: dict[float, float]
    standard_error: dict[float, float]
    reason: str

    @property
    def beta(self) -> float:
        """β, the square of the multiplier."""
        return self.multiplier**2


def play_tv_gp_ucb(fit: PanelFit, beta: float, values: Tensor, times: Tensor) -> Tensor:
    """Return the regret of TV-GP-UCB with a fit's settings in each round.

    Args:
        fit: The fit.
        beta: β.
        values: ``T x n``.
        times: ``T``, after the log of the fit, or within a new segment.
    """
    problem = PanelProblem(values, times)
    optimizer = tv_gp_ucb(**fit.settings(), beta=beta)
    history = run(problem, optimizer, horizon=len(times), times=times.tolist(), progress=False)
    return history.regret


def tune_exploration(
    fit: PanelFit,
    values: Tensor,
    times: Tensor,
    *,
    segments: Tensor | None = None,
    multipliers: Sequence[float] = MULTIPLIERS,
    folds: int = 3,
    play: Play = play_tv_gp_ucb,
    on_step: Callable[[str], None] = lambda step: None,
) -> Exploration:
    """Choose the multiplier of the posterior standard deviation on the log of a fit.

    The second half of the log is cut into folds. For each, a model of the same form as ``fit`` is
    fitted to all that comes before it, and the fold is played with each multiplier; the last
    segments take the place of the last times in a log of independent segments, each played from its
    beginning. The rule is that of one standard error: of the multipliers whose mean regret exceeds
    the smallest by at most one standard error of the difference, the smallest multiplier is taken.
    Standard errors are over blocks of successive rounds, four in a fold, or over segments.

    Args:
        fit: The fit whose tuner is to be set.
        values: ``T x n``, the log of the fit.
        times: ``T``.
        segments: ``T`` labels, as of the fit.
        multipliers: The multipliers to compare, at least 0.
        folds: Number of folds.
        play: Plays a fold; default TV-GP-UCB.
        on_step: Called with the name of each step.

    Raises:
        ValueError: if there is no multiplier, one is negative, or there are more folds than times
            or segments to play.

    Example:
        >>> exploration = tune_exploration(fit, values, times)
        >>> tuner = recipes.tv_gp_ucb(**fit.settings(), beta=exploration.beta)
    """
    if not multipliers or min(multipliers) < 0 or folds < 1:
        raise ValueError(
            f"Expected multipliers of at least 0, and folds >= 1. Got {list(multipliers)}, {folds}."
        )
    multipliers = sorted(set(multipliers))
    blocks: dict[float, list[float]] = {multiplier: [] for multiplier in multipliers}
    weights = []
    for number, (before, stretches) in enumerate(_folds(values, times, segments, folds), start=1):
        on_step(f"fold {number} of {folds}: fit")
        model = fit_panel(
            values[before],
            times[before],
            segments=None if segments is None else segments[before],
            season=fit.season,
            temporal_kernel=[_learnable(kernel) for kernel in fit.temporal_kernels],
            time_unit=fit.time_unit,
        )
        on_step(f"fold {number} of {folds}: play")
        for rows in stretches:
            parts = BLOCKS if segments is None else 1
            weights += [len(part) for part in rows.tensor_split(parts)]
            for multiplier in multipliers:
                regret = play(model, multiplier**2, values[rows], times[rows])
                blocks[multiplier] += [part.mean().item() for part in regret.tensor_split(parts)]
    share = torch.tensor(weights, dtype=torch.float64)
    share = share / share.sum()
    regrets = {m: torch.tensor(rows, dtype=torch.float64) for m, rows in blocks.items()}
    means = {m: (share * rows).sum().item() for m, rows in regrets.items()}
    best = min(multipliers, key=lambda m: means[m])
    errors = {}
    for m, rows in regrets.items():
        spread = rows - regrets[best] - (means[m] - means[best])
        errors[m] = math.sqrt((share**2 * spread**2).sum().item() * len(rows) / (len(rows) - 1))
    chosen = next(m for m in multipliers if means[m] - means[best] <= errors[m])
    reason = (
        f"The multiplier {chosen:g} of the posterior standard deviation is the smallest whose "
        f"regret on later folds of the training stretch, {means[chosen]:.4g}, is within one "
        f"standard error of the smallest, {means[best]:.4g} of {best:g}."
    )
    differences = {m: means[m] - means[best] for m in multipliers}
    return Exploration(chosen, means, differences, errors, reason)


def _folds(
    values: Tensor, times: Tensor, segments: Tensor | None, folds: int
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield the rows before each fold, and those of each stretch of it that is played."""
    every = torch.arange(len(times))
    if segments is None:
        units = [every[i : i + 1] for i in range(len(times))]
    else:
        units = [every[segments == label] for label in torch.unique(segments)]
    first = math.ceil(FIRST_SHARE * len(units))
    if folds > len(units) - first or (segments is None and (len(units) - first) < BLOCKS * folds):
        raise ValueError(
            f"Expected at most as many folds as the second half of the log has room for. Got "
            f"{folds} folds of {len(units) - first} {'times' if segments is None else 'segments'}."
        )
    ends = torch.linspace(first, len(units), folds + 1).round().int().tolist()
    for start, stop in pairwise(ends):
        played = units[start:stop]
        stretches = played if segments is not None else [torch.cat(played)]
        yield torch.cat(units[:start]), stretches


def _learnable(kernel: TemporalKernel) -> TemporalKernel:
    """Return a copy of a temporal kernel whose parameters are learned, but for a period."""
    kernel = deepcopy(kernel)
    for name, parameter in kernel.named_parameters():
        parameter.requires_grad_(name != "raw_period")
    return kernel
