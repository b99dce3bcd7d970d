"""Figures 2 to 5 of Vakili et al. (2023): cumulative regret, a panel for each function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import Reproduction
from tvbo.plotting.figure import COLORS, LINES, new_figure
from tvbo.plotting.regret import start_axes

PANEL_WIDTH, PANEL_HEIGHT = 4.6, 4.2


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

    Args:
        panels: For each title, the regret per round of each ``"λ = ..., algorithm"``,
            ``replicates x T``; all panels have the same.
    """
    figure = new_figure(PANEL_WIDTH * len(panels), PANEL_HEIGHT)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, regret) in zip(axes, panels.items(), strict=True):
        for (name, rows), (color, line) in zip(regret.items(), _styles(regret), strict=True):
            total = rows.cumsum(dim=1)
            rounds, mean = torch.arange(1, total.shape[1] + 1), total.mean(dim=0)
            ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
            if len(total) > 1:
                half = total.std(dim=0) / 2
                ax.fill_between(
                    rounds, mean - half, mean + half, color=color, alpha=0.2, linewidth=0
                )
        ax.grid(alpha=0.3)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("round")
        start_axes(ax)
    axes[0].set_ylabel("cumulative regret $R_t$")
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        frameon=False,
        ncols=3,
        loc="outside lower center",
        title="λ: mean delay in rounds. Band: ± half a standard deviation over runs",
        title_fontsize=10,
    )
    return figure


def _styles(names: Iterable[str]) -> list[tuple[str, str | tuple]]:
    """Return color and line of each: by λ and by algorithm where there are several of both."""
    pairs = [name.split(", ", 1) for name in names]
    rates, algorithms = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    if min(len(rates), len(algorithms)) > 1:
        return [(COLORS[rates.index(r)], LINES[algorithms.index(a)]) for r, a in pairs]
    # With more algorithms than colors, a color is reused with another line style.
    laps = (divmod(place, len(COLORS)) for place in range(len(pairs)))
    return [(COLORS[nth], LINES[(nth + lap) % len(LINES)]) for lap, nth in laps]
