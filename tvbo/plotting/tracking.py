"""Figure of algorithms that follow, or lose, an optimum that moves in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.evaluation import History
from tvbo.plotting.figure import algorithm_styles, name_lines, new_figure
from tvbo.plotting.regret import draw_means
from tvbo.test_functions import MovingPeak, PanelProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOWS = 5
"""Number of maps of each algorithm."""

ROW_HEIGHT, REGRET_HEIGHT = 1.75, 2.4
"""Heights of a row of maps and of the regret, in inches."""

LABEL_WIDTH = 20
"""Width of the names beside the regret, in characters."""

SMOOTHING = 10
"""Rounds of the rolling mean of the regret; fewer where there are not 100."""


def plot_tracking(
    problem: MovingPeak | PanelProblem,
    histories: Mapping[str, History],
    regret: Mapping[str, Tensor],
) -> Figure:
    """Plot where algorithms look for an optimum that moves in the plane, and their regret.

    Above, the second half of each history stands in a row of five maps, one for each fifth of its
    rounds, with the actions, the path of the optimum, and a star where it ends. Below stands the
    rolling mean of the regret, with a band of one standard error if there are several replicates.

    Args:
        problem: A problem with two action columns that knows its optimal action at every time.
        histories: Histories of some of the algorithms, at least ten rounds each.
        regret: Regret of each algorithm, ``T`` or ``replicates x T``, of as many rounds.
    """
    heights = [ROW_HEIGHT] * len(histories) + [REGRET_HEIGHT]
    figure = new_figure(7.0, sum(heights))
    *rows, bottom = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    styles = algorithm_styles(regret)
    low, high = torch.cat([history.X for history in histories.values()]).aminmax(dim=0)
    margin = 0.05 * (high - low)
    xlim, ylim = torch.stack([low - margin, high + margin], dim=-1)
    for row, (name, history) in zip(rows, histories.items(), strict=True):
        color, _ = styles[name]
        axes = row.subplots(1, WINDOWS, sharex=True, sharey=True)
        axes[0].set(xlim=xlim, ylim=ylim, xticks=[], yticks=[])
        first = len(history) // 2
        actions = history.X[first:]
        optimum = torch.stack([problem.optimal_action(t) for t in history.t[first:].tolist()])
        windows = zip(actions.tensor_split(WINDOWS), optimum.tensor_split(WINDOWS), strict=True)
        for ax, (shown, path) in zip(axes, windows, strict=True):
            ax.plot(*optimum.T, color="black", linewidth=0.6, alpha=0.4)
            ax.plot(*path.T, color="black", linewidth=2.5, alpha=0.7)
            ax.plot(*shown.T, "o", color=color, markersize=5, markeredgecolor="white")
            ax.plot(*path[-1], "*", color="#F0E442", markersize=13, markeredgecolor="black")
            ax.set_aspect("equal")
            ax.set_title(f"rounds {first + 1}–{first + len(shown)}", fontsize=8, pad=3)
            first += len(shown)
        near = (actions - optimum).norm(dim=-1).median()
        row.suptitle(
            f"{name}: half of its actions within {near:.2f} of the optimum",
            x=0.02,
            ha="left",
            fontsize=10,
            color=color,
            weight="bold",
        )
    each = {name: torch.atleast_2d(values) for name, values in regret.items()}
    horizon = next(iter(each.values())).shape[1]
    width = min(SMOOTHING, max(1, horizon // 10))
    ax = bottom.subplots()
    draw_means(ax, {k: v.unfold(1, width, 1).mean(dim=-1) for k, v in each.items()}, first=width)
    ax.set(xlim=(1, horizon), ylim=(0, None), xlabel="round")
    ax.set_title(
        f"regret (0 is best), rolling mean of {width} rounds; band: standard error",
        loc="left",
        fontsize=10,
    )
    name_lines(ax, LABEL_WIDTH)
    return figure
