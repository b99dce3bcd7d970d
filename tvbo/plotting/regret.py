"""Figure of regret over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.plotting.figure import algorithm_styles, draw_band, finish_axes, legend_above, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_average_regret(
    regret: Mapping[str, Tensor], ax: Axes | None = None, unit: str = "", time_label: str = "round"
) -> Axes:
    """Plot the average regret ``R_t / t`` of several algorithms.

    Args:
        regret: Regret of each algorithm, ``T`` or ``replicates x T``. Of several replicates the
            mean is drawn, with a band of one standard error.
        ax: Axes to draw on; default those of a new figure.
        unit: Unit of the reward.
        time_label: Label of the horizontal axis.
    """
    if ax is None:
        ax = new_figure().subplots()
    draw_means(ax, {name: running_mean(rows) for name, rows in regret.items()})
    ax.set(xlim=(1, None), ylim=(0, None))
    finish_axes(ax, time_label, f"average regret ({unit})" if unit else "average regret")
    legend_above(ax)
    return ax


def running_mean(regret: Tensor) -> Tensor:
    """Return the mean of each row so far, ``replicates x T``, of ``T`` or ``replicates x T``."""
    rows = torch.atleast_2d(regret)
    return rows.cumsum(dim=1) / torch.arange(1, rows.shape[1] + 1)


def draw_means(ax: Axes, curves: Mapping[str, Tensor], first: int = 1) -> None:
    """Draw means over replicates, with a band of one standard error if there are several.

    Args:
        ax: Axes to draw on.
        curves: Curves of each algorithm, ``replicates x T``.
        first: Round of the first column.
    """
    styles = algorithm_styles(curves)
    for name, rows in curves.items():
        color, line = styles[name]
        rounds = torch.arange(first, first + rows.shape[1])
        mean = rows.mean(dim=0)
        ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
        if len(rows) > 1:
            draw_band(ax, rounds, mean, rows.std(dim=0) / len(rows) ** 0.5, color)
    ax.grid(alpha=0.3)
