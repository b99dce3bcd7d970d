"""The exploration of a tuner of a panel, chosen by playing later parts of the training stretch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tvbo.evaluation.backtesting.result import block_estimate
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
class BetaTuning:
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
) -> BetaTuning:
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

    Raises:
        ValueError: if there is no multiplier, one is negative, or there are more folds than times
            or segments to play.

    Example:
        >>> tuning = tune_exploration(fit, values, times)
        >>> tuner = recipes.tv_gp_ucb(**fit.settings(), beta=tuning.beta)
    """
    if not multipliers or min(multipliers) < 0 or folds < 1:
        raise ValueError(
            f"Expected multipliers of at least 0, and folds >= 1. Got {list(multipliers)}, {folds}."
        )
    parts: dict[float, list[Tensor]] = {multiplier: [] for multiplier in sorted(set(multipliers))}
    blocks: list[Tensor] = []
    for before, stretches in _folds(values, times, segments, folds):
        model = fit_panel(
            values[before],
            times[before],
            segments=None if segments is None else segments[before],
            season=fit.season,
            temporal_kernel=[_learnable(kernel) for kernel in fit.temporal_kernels],
            time_unit=fit.time_unit,
        )
        for rows in stretches:
            for block in rows.tensor_split(BLOCKS if segments is None else 1):
                blocks.append(torch.full_like(block, len(blocks)))
            for multiplier, played in parts.items():
                played.append(play(model, multiplier**2, values[rows], times[rows]))
    labels = torch.cat(blocks)
    regret = {m: torch.cat(played).double() for m, played in parts.items()}
    means = {m: block_estimate(rows, labels).mean for m, rows in regret.items()}
    best = min(means, key=lambda m: means[m])
    gaps = {m: block_estimate(rows - regret[best], labels) for m, rows in regret.items()}
    errors = {m: gap.standard_error or 0.0 for m, gap in gaps.items()}
    chosen = next(m for m, gap in gaps.items() if gap.mean <= errors[m])
    reason = (
        f"The multiplier {chosen:g} of the posterior standard deviation is the smallest whose "
        f"regret on later folds of the training stretch, {means[chosen]:.4g}, is within one "
        f"standard error of the smallest, {means[best]:.4g} of {best:g}."
    )
    return BetaTuning(chosen, means, {m: gap.mean for m, gap in gaps.items()}, errors, reason)


def _folds(
    values: Tensor, times: Tensor, segments: Tensor | None, folds: int
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield the rows before each fold, and those of each stretch of it that is played."""
    rows = torch.arange(len(times))
    if segments is None:
        units, least, words = [*rows.split(1)], BLOCKS, "times"
    else:
        units, least, words = [rows[segments == each] for each in segments.unique()], 1, "segments"
    first = math.ceil(FIRST_SHARE * len(units))
    if len(units) - first < least * folds:
        raise ValueError(
            f"Expected at most as many folds as the second half of the log has room for. Got "
            f"{folds} folds of {len(units) - first} {words}."
        )
    ends = torch.linspace(first, len(units), folds + 1).round().int().tolist()
    for start, stop in pairwise(ends):
        played = units[start:stop]
        yield torch.cat(units[:start]), [torch.cat(played)] if segments is None else played


def _learnable(kernel: TemporalKernel) -> TemporalKernel:
    """Return a copy of a temporal kernel whose parameters are learned, but for a period."""
    kernel = deepcopy(kernel)
    for name, parameter in kernel.named_parameters():
        parameter.requires_grad_(name != "raw_period")
    return kernel
