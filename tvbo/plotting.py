"""Pictures: regret over time, what a fit says, what a demo did."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from tvbo.history import History
from tvbo.models import DriftFit
from tvbo.problems.panel import PanelProblem

# Okabe and Ito's colours, told apart by the colour-blind; line styles survive a grey printer.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999", "#56B4E9", "#E69F00")
LINES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), ":")
DPI = 150


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure, in the format that the file's name ends with."""
    figure.savefig(path, dpi=DPI, bbox_inches="tight")


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """An empty figure that no window manager knows of."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
    for (name, rows), color, line in zip(regret.items(), cycle(COLORS), cycle(LINES), strict=False):
        rows = torch.atleast_2d(rows)
        rounds = torch.arange(1, rows.shape[1] + 1)
        average = rows.cumsum(dim=1) / rounds
        mean = average.mean(dim=0)
        ax.plot(rounds, mean, color=color, linestyle=line, linewidth=1.8, label=name)
        if len(rows) > 1:
            error = average.std(dim=0) / len(rows) ** 0.5
            ax.fill_between(rounds, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)
    ax.set_xlabel(time_label)
    ax.set_ylabel("average regret" + (f" ({unit})" if unit else ""))
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=1)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def plot_drift_fit(fit: DriftFit) -> Figure:
    """The profile likelihood over ε with its interval, and the correlation that ε means."""
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    low, high = fit.forgetting_rate_interval
    depth = [(rate, value - fit.log_likelihood) for rate, value in fit.profile]
    shown = [(rate, value) for rate, value in depth if value > -8]
    left.plot(*zip(*shown, strict=True), "o-", color=COLORS[0], markersize=3)
    left.axvspan(low, high, color=COLORS[0], alpha=0.15, label=f"{fit.level:.0%} interval")
    left.axvline(fit.forgetting_rate, color=COLORS[1], linestyle="--", label="maximum")
    left.locator_params(axis="x", nbins=5)
    left.set_xlabel(f"forgetting rate ε per {fit.time_unit}")
    left.set_ylabel("profile log likelihood − maximum (nats)")
    left.legend(frameon=False)
    reach = 4 * fit.half_life if 0 < fit.half_life < float("inf") else 1.0
    lag = torch.linspace(0, reach, 200, dtype=torch.float64)

    def correlation(rate: float) -> Tensor:
        return (1 - rate) ** (lag / 2)

    right.plot(lag, correlation(fit.forgetting_rate), color=COLORS[1])
    right.fill_between(lag, correlation(low), correlation(high), color=COLORS[0], alpha=0.15)
    if fit.half_life < float("inf"):
        right.axvline(fit.half_life, color="black", linestyle=":", linewidth=1)
        right.annotate(
            f"half-life {fit.half_life:.3g}",
            (fit.half_life, 0.5),
            xytext=(6, 6),
            textcoords="offset points",
        )
    right.set_xlabel(f"lag (unit: {fit.time_unit})")
    right.set_ylabel("correlation of the function with itself")
    right.set_ylim(0, 1.02)
    for ax in (left, right):
        ax.grid(alpha=0.3)
    return figure


def plot_tracking(
    problem: PanelProblem, histories: Mapping[str, History], regret: Mapping[str, Tensor]
) -> Figure:
    """A drifting function on a square grid, where algorithms sampled it, and their regret.

    Args:
        problem: A function on a square 2-D grid, such as :func:`tvbo.problems.drifting_gp` draws.
        histories: By algorithm; the first two are shown on the maps.
        regret: By algorithm, as :func:`plot_average_regret` takes it.
    """
    figure = new_figure(11.0, 8.0)
    top, bottom = figure.subfigures(2, 1, height_ratios=(0.9, 1.0))
    _draw_maps(top, problem, histories)
    left, right = bottom.subfigures(1, 2)
    _draw_tracks(left, problem, histories)
    regret_ax = right.subplots()
    plot_average_regret(regret, regret_ax)
    regret_ax.set_ylabel("average regret (lower is better)")
    return figure


def _draw_tracks(
    figure: SubFigure, problem: PanelProblem, histories: Mapping[str, History]
) -> None:
    """One strip for each algorithm: where it sampled over time, and where the optimum was."""
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
    """Three moments of the function, each with the samples of the ten rounds before it."""
    side = round(len(problem.choices) ** 0.5)
    times = next(iter(histories.values())).t
    moments = [times[int(len(times) * share)].item() for share in (0.25, 0.6, 0.999)]
    axes = figure.subplots(1, 3, sharey=True)
    span = problem.values.aminmax()
    for ax, moment in zip(axes, moments, strict=True):
        place = int(torch.searchsorted(problem.times, torch.tensor(moment, dtype=torch.float64)))
        image = ax.imshow(
            problem.values[place].reshape(side, side).T,
            origin="lower",
            extent=(0, 1, 0, 1),
            cmap="Greys",
            vmin=span.min,
            vmax=span.max,
        )
        for (name, history), color, marker in zip(
            list(histories.items())[:2], COLORS, "os", strict=False
        ):
            recent = (history.t <= moment) & (history.t > moment - 10)
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
            *problem.optimal_action(moment),
            "*",
            color="#F0E442",
            markeredgecolor="black",
            markersize=15,
            linestyle="",
            label="optimum",
        )
        ax.set_xlim(-0.03, 1.03)
        ax.set_ylim(-0.03, 1.03)
        ax.set_title(f"the function at t = {moment:g}", fontsize=10)
        ax.set_xlabel("$x_1$")
    axes[0].set_ylabel("$x_2$")
    figure.colorbar(image, ax=axes, shrink=0.9, label="value")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False
    )
