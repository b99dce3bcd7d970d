"""Regret over time, and regret against a setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tvbo.plotting.figure import COLORS, LINES, new_figure

PANEL_WIDTH, PANEL_HEIGHT = 3.3, 2.7
"""Of one panel among several, in inches."""


def plot_average_regret(
    regret: Mapping[str, Tensor], ax: Axes | None = None, unit: str = "", time_label: str = "round"
) -> Axes:
    """Average regret ``R_t / t`` of several algorithms.

    Args:
        regret: By algorithm, ``T``, or ``trials x T``: then the mean, with a band of one standard
            error over trials.
        ax: Where to draw; default a new figure.
        unit: Unit of the reward.
        time_label: What the horizontal axis counts.
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
) -> Figure:
    """Average regret in several panels, on the same axes, the same algorithms in each.

    Args:
        panels: By title, what :func:`plot_average_regret` takes.
        unit: Unit of the reward.
        time_label: What the horizontal axes count.
        columns: Panels side by side.
        panel_height: In inches.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(PANEL_WIDTH * columns, panel_height * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for place, (title, regret) in enumerate(panels.items()):
        _draw_average_regret(axes[place], regret)
        axes[place].set_title(title, fontsize=10)
        if place + columns >= len(panels):
            axes[place].set_xlabel(time_label)
            axes[place].tick_params(labelbottom=True)
    # Limits are set when all is drawn: setting one end of shared axes freezes the other.
    start_axes(axes[0])
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
    """Regret against a setting: the mean over trials, with a band of one standard deviation.

    Args:
        setting: ``m`` values, increasing.
        regret: ``m x trials``, average regret of whole runs.
        label: What the setting is.
        ax: Where to draw; default a new figure.
        unit: Unit of the reward.
    """
    if ax is None:
        ax = new_figure().subplots()
    mean, deviation = regret.mean(dim=1), regret.std(dim=1)
    ax.plot(setting, mean, "o-", color=COLORS[0], markersize=4, label="mean over trials")
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
    """Means over trials, with a band of one standard error where there are several.

    Args:
        ax: Where to draw.
        curves: By algorithm, ``trials x T``.
    """
    for (name, rows), color, line in zip(curves.items(), cycle(COLORS), cycle(LINES), strict=False):
        rounds = torch.arange(1, rows.shape[1] + 1)
        mean = rows.mean(dim=0)
        ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
        if len(rows) > 1:
            error = rows.std(dim=0) / len(rows) ** 0.5
            ax.fill_between(rounds, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
    ax.grid(alpha=0.3)


def start_axes(ax: Axes) -> None:
    """Rounds from 1, regret from 0."""
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
