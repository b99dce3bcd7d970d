"""Figures of regret in several panels, and of regret against a setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from tvbo.plotting.figure import COLORS, draw_band, finish_axes, legend_above, new_figure
from tvbo.plotting.regret import draw_means, running_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT = 3.3, 2.7
"""Size of one of several panels, in inches."""


def plot_regret_panels(
    panels: Mapping[str, Mapping[str, Tensor]],
    unit: str = "",
    time_label: str = "round",
    columns: int = 3,
    panel_height: float = PANEL_HEIGHT,
    shared_axes: bool = True,
) -> Figure:
    """Plot the average regret of the same algorithms in several panels.

    Args:
        panels: For each title, the regret of each algorithm, ``T`` or ``replicates x T``.
        unit: Unit of the reward.
        time_label: Label of the horizontal axes.
        columns: Number of panels side by side.
        panel_height: Height of a panel in inches.
        shared_axes: Whether all panels have the same axes, to be compared.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(PANEL_WIDTH * columns, panel_height * rows)
    axes = figure.subplots(
        rows, columns, sharex=shared_axes, sharey=shared_axes, squeeze=False
    ).flatten()
    for index, (title, regret) in enumerate(panels.items()):
        draw_means(axes[index], {name: running_mean(rows) for name, rows in regret.items()})
        axes[index].set_title(title, fontsize=10)
        if index + columns >= len(panels):
            axes[index].set_xlabel(time_label)
            axes[index].tick_params(labelbottom=True)
    # Limits are set at the end, since setting one limit of shared axes fixes the other.
    for ax in axes[:1] if shared_axes else axes[: len(panels)]:
        ax.set(xlim=(1, None), ylim=(0, None))
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.supylabel(_with_unit("average regret", unit), fontsize=10)
    figure.legend(
        *axes[0].get_legend_handles_labels(), frameon=False, ncols=4, loc="outside lower center"
    )
    return figure


def plot_regret_against(
    setting: Tensor, regret: Tensor, label: str, ax: Axes | None = None, unit: str = ""
) -> Axes:
    """Plot regret against a setting: mean over replicates, with a band of one standard deviation.

    Args:
        setting: ``m`` values, increasing.
        regret: ``m x replicates``, average regret of a run.
        label: Label of the setting.
        ax: Axes to draw on; default those of a new figure.
        unit: Unit of the reward.
    """
    if ax is None:
        ax = new_figure().subplots()
    mean, deviation = regret.mean(dim=1), regret.std(dim=1)
    ax.plot(setting, mean, "o-", color=COLORS[0], markersize=4, label="mean over replicates")
    draw_band(ax, setting, mean, deviation, COLORS[0], label="± one standard deviation")
    finish_axes(ax, label, _with_unit("average regret", unit))
    ax.set_ylim(bottom=0)
    legend_above(ax)
    return ax


def _with_unit(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label
