"""Figures 2 and 3 of Krause, Ong (2011): average regret, and the largest gap of a task."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.claims import Reproduction
from experiments.krause.fig2_claims import worst_gap
from experiments.plots.regret import plot_regret_panels
from tvbo.plotting.figure import new_figure
from tvbo.plotting.regret import draw_means, plot_average_regret


def plot_molecules(result: Reproduction) -> Figure:
    """Plot the average regret over the molecules, and the largest gap of a molecule."""
    names = [name.removeprefix("HLA-") for name in result.settings["molecules"]]
    panels: dict[str, dict[str, Tensor]] = {}
    for name, rows in result.regret.items():
        algorithm, _, once = name.partition(", ")
        panels.setdefault(once or "peptides may be tried again", {})[algorithm] = rows
    gaps = {
        title: {name: worst_gap(rows) for name, rows in panel.items()}
        for title, panel in panels.items()
    }
    return plot_tasks(panels, gaps, names, unit="log10 of affinity")


def plot_sensors(result: Reproduction) -> Figure:
    """Plot the average regret of all algorithms, of the maximum and of the mean of a step."""
    measures = ("maximum of the readings", "average of the readings")
    panels = {
        measure: {name: rows[:, i] for name, rows in result.regret.items()}
        for i, measure in enumerate(measures)
    }
    return plot_regret_panels(
        panels, unit="°C", time_label="step (5 minutes each)", panel_height=4.5
    )


def plot_tasks(
    panels: Mapping[str, Mapping[str, Tensor]],
    gaps: Mapping[str, Mapping[str, Tensor]],
    tasks: list[str],
    unit: str = "",
) -> Figure:
    """Plot (a) the average regret over tasks in sequence, (b) the largest gap of a task.

    The gap of a task is the best reward there minus the best found in its first ``t`` trials.

    Args:
        panels: For each title of a pair of panels, the regret of each algorithm,
            ``replicates x tasks x T``.
        gaps: For each title, the gaps of each algorithm for (b), ``replicates x T``.
        tasks: Names of the tasks, in order.
        unit: Unit of the reward.
    """
    figure = new_figure(9.5, 0.6 + 3.6 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (title, regret), (left, right) in zip(panels.items(), axes, strict=True):
        _draw_average_regret(left, regret, tasks, unit)
        draw_means(right, gaps[title])
        right.set(xlim=(1, None), ylim=(0, None))
        right.set_xlabel("trial of each task")
        right.set_ylabel(f"largest gap ({unit})" if unit else "largest gap")
        left.set_title(f"(a) {title}", fontsize=10)
        right.set_title(f"(b) {title}", fontsize=10)
        left.get_legend().remove()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=4, loc="outside lower center")
    return figure


def _draw_average_regret(
    ax: Axes, regret: Mapping[str, Tensor], tasks: list[str], unit: str
) -> None:
    horizon = next(iter(regret.values())).shape[-1]
    flat = {name: rows.flatten(-2) for name, rows in regret.items()}
    plot_average_regret(flat, ax, unit, "trial")
    for place, name in enumerate(tasks):
        if place:
            ax.axvline(place * horizon + 0.5, color="black", linewidth=0.5, linestyle=":")
        ax.annotate(
            name,
            ((place + 0.5) * horizon, 0.01),
            xycoords=ax.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=7,
        )
