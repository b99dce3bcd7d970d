"""Figure 2 of Krause, Ong (2011)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tvbo.plotting.figure import new_figure
from tvbo.plotting.regret import draw_means, plot_average_regret, start_axes


def plot_tasks(
    panels: Mapping[str, Mapping[str, Tensor]],
    gaps: Mapping[str, Mapping[str, Tensor]],
    tasks: list[str],
    unit: str = "",
) -> Figure:
    """Tasks one after another: (a) average regret, (b) the largest gap of any task.

    The gap of a task is the best reward there minus the best found in its first ``t`` trials.

    Args:
        panels: By what was allowed, one pair of pictures each; in it, by algorithm,
            ``trials x tasks x T``.
        gaps: The same, ``trials x T``, what is drawn for (b).
        tasks: Their names, in order.
        unit: Unit of the reward.
    """
    figure = new_figure(9.5, 0.6 + 3.6 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (title, regret), (left, right) in zip(panels.items(), axes, strict=True):
        _draw_average_regret(left, regret, tasks, unit)
        draw_means(right, gaps[title])
        start_axes(right)
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
