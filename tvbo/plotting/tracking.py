"""Figure of algorithms that track the optimum of a function of two actions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvbo.evaluation import History
from tvbo.plotting.figure import COLORS, new_figure
from tvbo.plotting.regret import plot_average_regret
from tvbo.problems.panel import PanelProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure


def plot_tracking(
    problem: PanelProblem, histories: Mapping[str, History], regret: Mapping[str, Tensor]
) -> Figure:
    """Plot a drifting function on a square grid, the samples of algorithms, and their regret.

    Args:
        problem: A function on a square 2-D grid, such as :func:`tvbo.problems.drifting_gp` draws.
        histories: History of each algorithm; the first two are shown on the maps.
        regret: Regret of each algorithm, ``T`` or ``replicates x T``.
    """
    figure = new_figure(11.0, 8.0)
    top, bottom = figure.subfigures(2, 1, height_ratios=(0.9, 1.0), squeeze=False)[:, 0]
    _draw_maps(top, problem, histories)
    left, right = bottom.subfigures(1, 2, squeeze=False)[0]
    _draw_tracks(left, problem, histories)
    regret_ax = right.subplots()
    plot_average_regret(regret, regret_ax)
    regret_ax.set_ylabel("average regret (lower is better)")
    return figure


def _draw_tracks(
    figure: SubFigure, problem: PanelProblem, histories: Mapping[str, History]
) -> None:
    """Draw samples and optimum over time, in one panel for each algorithm."""
    axes = figure.subplots(len(histories), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (name, history), color in zip(axes, histories.items(), cycle(COLORS), strict=False):
        optimum = torch.stack([problem.optimal_action(float(t)) for t in history.t])
        ax.plot(history.t, optimum[:, 0], "k-", linewidth=1.0, label="optimum")
        ax.plot(history.t, history.X[:, 0], "o", color=color, markersize=2.5, label="sample")
        ax.set_ylim(-0.08, 1.08)
        ax.set_title(name, fontsize=9, loc="left", pad=2)
        ax.grid(alpha=0.3)
    axes[-1].set_xlabel("time")
    figure.supylabel("first coordinate $x_1$ of samples and of the optimum (line)", fontsize=9)


def _draw_maps(figure: SubFigure, problem: PanelProblem, histories: Mapping[str, History]) -> None:
    """Draw the function at three times, each with the samples of the last ten rounds."""
    side = round(len(problem.choices) ** 0.5)
    times = next(iter(histories.values())).t
    shown_times = [times[int(len(times) * share)].item() for share in (0.25, 0.6, 0.999)]
    axes = figure.subplots(1, 3, sharey=True)
    span = problem.values.aminmax()
    for ax, t in zip(axes, shown_times, strict=True):
        index = int(torch.searchsorted(problem.times, torch.tensor(t, dtype=torch.float64)))
        image = ax.imshow(
            problem.values[index].reshape(side, side).T,
            origin="lower",
            extent=(0, 1, 0, 1),
            cmap="Greys",
            vmin=span.min,
            vmax=span.max,
        )
        for (name, history), color, marker in zip(
            list(histories.items())[:2], COLORS, "os", strict=False
        ):
            recent = (history.t <= t) & (history.t > t - 10)
            ax.plot(
                *history.X[recent].T,
                marker,
                color=color,
                markeredgecolor="white",
                markersize=6,
                linestyle="",
                label=f"{name}, last 10 samples",
            )
        ax.plot(
            *problem.optimal_action(t),
            "*",
            color="#F0E442",
            markeredgecolor="black",
            markersize=15,
            linestyle="",
            label="optimum",
        )
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.03, 1.03)
        ax.set_title(f"the function at t = {t:g}", fontsize=10)
        ax.set_xlabel("$x_1$")
    axes[0].set_ylabel("$x_2$")
    figure.colorbar(image, ax=axes, shrink=0.9, label="value")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False
    )
