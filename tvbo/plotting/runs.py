"""Figure of the trials of a journaled run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvbo.plotting.figure import COLORS, new_figure
from tvbo.terminal import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOLD, MEAN, FAILED, OPEN = COLORS[0], COLORS[2], COLORS[1], COLORS[4]

NEWEST = 20
"""Number of outcomes whose mean is drawn: under drift, the best one so far soon says nothing."""


def plot_run(trials: pd.DataFrame, title: str = "", outcome: str = "outcome") -> Figure:
    """Plot outcomes over time, the mean of the newest 20, and the trials without an outcome.

    Args:
        trials: Table of trials from :func:`tvbo.storage.trials_of`.
        title: Title of the figure.
        outcome: Column of the outcome.
    """
    figure = new_figure(8.0, 5.0)
    outcomes, others = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    told = trials[(trials.state == "told") & trials.t.notna()].sort_values("t", kind="stable")
    _draw_outcomes(outcomes, told, outcome)
    _draw_others(others, trials[trials.state != "told"])
    others.set_xlabel("time of the trial")
    if title:
        figure.suptitle(visible(title), fontsize=10, parse_math=False)
    return figure


def _draw_outcomes(ax: Axes, told: pd.DataFrame, outcome: str) -> None:
    noise = told[f"{outcome}_variance"] ** 0.5
    if noise.notna().any():
        ax.errorbar(
            told.t, told[outcome], noise, fmt="none", color=TOLD, alpha=0.4, label="± noise as told"
        )
    ax.plot(told.t, told[outcome], "o", color=TOLD, markersize=3.5, label="told")
    recent = told[outcome].rolling(NEWEST, min_periods=1).mean()
    ax.plot(told.t, recent, color=MEAN, label=f"mean of the newest {NEWEST}")
    ax.set_ylabel(visible(outcome))
    ax.grid(alpha=0.3)
    if len(told):
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9)
    else:
        ax.text(0.5, 0.5, "no outcome yet", transform=ax.transAxes, ha="center", va="center")


def _draw_others(ax: Axes, others: pd.DataFrame) -> None:
    """Draw a mark for each trial without an outcome, in one row per state."""
    rows = [
        ("open", "o", OPEN),
        ("failed", "x", FAILED),
        ("expired", "s", FAILED),
        ("skipped", "|", OPEN),
    ]
    shown = [row for row in rows if (others.state == row[0]).any()] or [rows[0]]
    for height, (state, marker, color) in enumerate(shown):
        times = others[others.state == state].t
        [marks] = ax.plot(times, [height] * len(times), marker, color=color, markersize=6)
        if marker in "os":
            marks.set_markerfacecolor("none")
    names = [f"{state} ({(others.state == state).sum()})" for state, _, _ in shown]
    ax.set_yticks(range(len(shown)), names)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.grid(alpha=0.3, axis="x")
