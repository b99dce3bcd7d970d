"""Figures of regret over time, and of regret against a setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.plotting.figure import COLORS, algorithm_styles, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH, PANEL_HEIGHT = 3.3, 2.7
"""Size of one of several panels, in inches."""


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
    _draw_average_regret(ax, regret)
    start_axes(ax)
    ax.set_xlabel(time_label)
    ax.set_ylabel(_with_unit("average regret", unit))
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


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
        _draw_average_regret(axes[index], regret)
        axes[index].set_title(title, fontsize=10)
        if index + columns >= len(panels):
            axes[index].set_xlabel(time_label)
            axes[index].tick_params(labelbottom=True)
    # Limits are set at the end, since setting one limit of shared axes fixes the other.
    for ax in axes[:1] if shared_axes else axes[: len(panels)]:
        start_axes(ax)
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
    ax.fill_between(
        setting,
        mean - deviation,
        mean + deviation,
        color=COLORS[0],
        alpha=0.2,
        linewidth=0,
        label="± one standard deviation",
    )
    ax.set_xlabel(label)
    ax.set_ylabel(_with_unit("average regret", unit))
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def draw_means(ax: Axes, curves: Mapping[str, Tensor]) -> None:
    """Draw means over replicates, with a band of one standard error if there are several.

    Args:
        ax: Axes to draw on.
        curves: Curves of each algorithm, ``replicates x T``.
    """
    styles = algorithm_styles(curves)
    for name, rows in curves.items():
        color, line = styles[name]
        rounds = torch.arange(1, rows.shape[1] + 1)
        mean = rows.mean(dim=0)
        ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
        if len(rows) > 1:
            error = rows.std(dim=0) / len(rows) ** 0.5
            ax.fill_between(rounds, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
    ax.grid(alpha=0.3)


def start_axes(ax: Axes) -> None:
    """Set the lower limits of the axes: round 1, regret 0."""
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=1)


def _draw_average_regret(ax: Axes, regret: Mapping[str, Tensor]) -> None:
    rows = {name: torch.atleast_2d(each) for name, each in regret.items()}
    draw_means(
        ax,
        {
            name: each.cumsum(dim=1) / torch.arange(1, each.shape[1] + 1)
            for name, each in rows.items()
        },
    )


def _with_unit(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label
