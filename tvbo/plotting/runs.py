"""Figure of the trials of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvbo.plotting.figure import COLORS, finish_axes, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TOLD, MEAN, FAILED, OPEN = COLORS[0], COLORS[2], COLORS[1], COLORS[4]

MARKS = {
    "open": ("o", OPEN),
    "failed": ("x", FAILED),
    "expired": ("s", FAILED),
    "skipped": ("|", OPEN),
}
"""Marker and color of the trials without an outcome, by state."""

NEWEST = 20
"""Number of outcomes whose mean is drawn: under drift, the best one so far soon says nothing."""


def plot_run(trials: pd.DataFrame, title: str = "", outcome: str = "outcome") -> Figure:
    """Plot outcomes over time, the mean of the newest 20, and the trials without an outcome.

    Args:
        trials: Table of trials, as :meth:`tvbo.storage.RunRows.to_frame` returns it.
        title: Title of the figure.
        outcome: Column of the outcome.
    """
    figure = new_figure(8.0, 5.0, title)
    ax, others = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    observed = trials[(trials.state == "told") & trials.t.notna()].sort_values("t", kind="stable")
    noise = observed[f"{outcome}_variance"] ** 0.5
    if noise.notna().any():
        bars = ax.errorbar(observed.t, observed[outcome], noise, fmt="none", color=TOLD, alpha=0.4)
        bars.set_label("± noise as observed")
    ax.plot(observed.t, observed[outcome], "o", color=TOLD, markersize=3.5, label="told")
    recent = observed[outcome].rolling(NEWEST, min_periods=1).mean()
    ax.plot(observed.t, recent, color=MEAN, label=f"mean of the newest {NEWEST}")
    finish_axes(ax, "", outcome, plain=True)
    if len(observed):
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9)
    else:
        ax.text(0.5, 0.5, "no outcome yet", transform=ax.transAxes, ha="center", va="center")
    times = {state: trials.t[trials.state == state] for state in MARKS}
    shown = [state for state in MARKS if len(times[state])] or ["open"]
    for row, state in enumerate(shown):
        marker, color = MARKS[state]
        face = "none" if marker in "os" else color
        places = [row] * len(times[state])
        others.plot(times[state], places, marker, color=color, markersize=6, markerfacecolor=face)
    others.set_yticks(range(len(shown)), [f"{state} ({len(times[state])})" for state in shown])
    others.set_ylim(len(shown) - 0.4, -0.6)
    finish_axes(others, "time of the trial", "")
    return figure
