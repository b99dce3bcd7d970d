"""Figures 2 to 5 of Vakili et al. (2023): cumulative regret, a panel for each function."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import Reproduction
from tvbo.plotting.figure import algorithm_styles, draw_band, name_lines, new_figure

PANEL_WIDTH, PANEL_HEIGHT = 5.6, 4.6


def plot_delays(result: Reproduction) -> Figure:
    """Plot the cumulative regret of all algorithms at each λ, a panel for each function."""
    lengthscales = result.settings["lengthscales"]
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        function, run = name.split(", ", 1)
        title = f"{function}, l = {lengthscales[function]}"
        panels.setdefault(title, {})[run] = rows
    return plot_cumulative_regret(panels)


def plot_cumulative_regret(panels: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Plot cumulative regret by round: means over runs, with a band of half a standard deviation.

    Names stand beside the lines, with λ where there are several.

    Args:
        panels: For each title, the regret per round of each ``"λ = ..., algorithm"``,
            ``replicates x T``; all panels have the same.
    """
    figure = new_figure(PANEL_WIDTH * len(panels), PANEL_HEIGHT)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, regret) in zip(axes, panels.items(), strict=True):
        split = [name.split(", ", 1) for name in regret]
        several = len({delay for delay, _ in split}) > 1
        names = [f"{run}, {delay}" if several else run for delay, run in split]
        styles = algorithm_styles(names)
        for name, rows in zip(names, regret.values(), strict=True):
            color, line = styles[name]
            total = rows.cumsum(dim=1)
            rounds, mean = torch.arange(1, total.shape[1] + 1), total.mean(dim=0)
            ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
            if len(total) > 1:
                draw_band(ax, rounds, mean, total.std(dim=0) / 2, color)
        ax.grid(alpha=0.3)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("round")
        ax.set(xlim=(1, None), ylim=(0, None))
        ax.set_xlim(right=rounds[-1])
        name_lines(ax, width=28, fontsize=8)
    axes[0].set_ylabel("cumulative regret $R_t$")
    figure.supxlabel(
        "Lower is better. λ: mean delay in rounds; 6 σ and β: width of the confidence band that is "
        "used.\nShaded: ± half a standard deviation over runs",
        fontsize=9,
    )
    return figure
