"""Figures of a run by its rows: what was predicted and what came, what was tried, how it drifts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.plotting.figure import BEST, FAILED, MODEL, OPEN, TOLD, finish_axes, new_figure
from tvbo.plotting.parameters import parameter_axes
from tvbo.recommendation import Recommendation
from tvbo.spaces.labels import Labels
from tvbo.storage import RunRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {
    "told": ("o", TOLD),
    "open": ("o", OPEN),
    "failed": ("x", FAILED),
    "expired": ("s", FAILED),
    "skipped": ("|", OPEN),
}
"""Marker and color of trials by state."""

BAND = 1.96
"""Half the width of a 95 % band, in standard deviations."""

Limits = Mapping[str, tuple[float, float]]
"""Lower and upper limits of outcomes by name."""


def plot_history(
    rows: RunRows,
    title: str = "",
    *,
    limits: Limits | None = None,
    newest: int | None = None,
    width: float = 8.0,
    height: float = 3.4,
) -> Figure:
    """Plot outcomes over time with the bands predicted at their asks, and trials without one.

    Args:
        rows: The rows of a run, of :func:`tvbo.storage.read_run`.
        title: Title of the figure.
        limits: Limits of outcomes by name, drawn dashed.
        newest: Number of trials that are drawn; None draws all.
        width: Width of the figure in inches.
        height: Height for each outcome in inches.
    """
    frame, names = _newest(rows, newest), rows.outcome_names
    figure = new_figure(width, height * (len(names) + 0.35), title)
    ratios = (*[3] * len(names), 1)
    *axes, others = figure.subplots(len(names) + 1, 1, sharex=True, height_ratios=ratios)
    told = frame[frame.state == "told"]
    _draw_predicted(axes[0], rows, frame)
    for ax, name in zip(axes, names, strict=True):
        noise = told[f"{name}_variance"] ** 0.5
        if noise.notna().any():
            ax.errorbar(told.t, told[name], noise, fmt="none", color=TOLD, alpha=0.4)
        ax.plot(told.t, told[name], "o", color=TOLD, markersize=3.5, label="outcome")
        for limit in (limits or {}).get(name, ()):
            if math.isfinite(limit):
                ax.axhline(limit, color=FAILED, linestyle="--", linewidth=1, label="limit")
        if len(told) == 0:
            ax.text(0.5, 0.5, "no outcome yet", transform=ax.transAxes, ha="center", va="center")
        finish_axes(ax, "", name, plain=True)
    for ax in axes[: None if limits else 1]:
        ax.legend(
            frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.02, 0.97)
        )
    _draw_states(others, frame)
    return figure


def plot_actions(
    rows: RunRows,
    recommended: Recommendation | None = None,
    *,
    newest: int | None = None,
    width: float = 8.0,
    height: float = 1.6,
) -> Figure:
    """Plot the actions tried over time, and the best: as each ask judged it, and now.

    Args:
        rows: The rows of a run in which a trial was asked for or attached.
        recommended: What is recommended now.
        newest: Number of trials that are drawn; None draws all.
        width: Width of the figure in inches.
        height: Height for each parameter in inches.
    """
    frame, labels = _newest(rows, newest), Labels.from_json(rows.labels)
    asks = rows.asks.items()
    best = {number: ask["best"] for number, ask in asks if ask.get("best") is not None}
    with_best = frame[frame.trial.isin(list(best))]
    X = torch.tensor([best[number] for number in with_best.trial], dtype=torch.float64)
    parameters = parameter_axes(labels.actions, len(rows.trials[0]["X"]))
    figure = new_figure(width, 0.7 + height * len(parameters))
    axes = figure.subplots(len(parameters), 1, sharex=True, squeeze=False)[:, 0]
    for ax, each in zip(axes, parameters, strict=True):
        for state, (marker, color) in MARKS.items():
            part = frame[frame.state == state]
            if len(part):
                places = each.places(part[each.name])
                ax.plot(part.t, places, marker, color=color, markersize=4, alpha=0.6, label=state)
        if len(with_best):
            ax.plot(
                with_best.t, each.values(X), color=BEST, drawstyle="steps-post", label="best tried"
            )
        if recommended is not None:
            [place] = each.values(recommended.X)
            now = recommended.labels.stamp(recommended.t)
            ax.plot([now], [place], "*", color=BEST, markersize=13, label="recommended now")
        finish_axes(ax, "", "")
        each.finish(ax, "y")
    axes[0].legend(
        frameon=False, fontsize=9, ncols=3, loc="lower right", bbox_to_anchor=(1.02, 0.97)
    )
    _finish_time(axes[-1])
    return figure


def plot_half_life(
    rows: RunRows,
    estimate: DriftEstimate | None = None,
    *,
    newest: int | None = None,
    width: float = 8.0,
    height: float = 3.4,
) -> Figure:
    """Plot the half-life of the correlation over time as each ask knew it, and now.

    Args:
        rows: The rows of a run.
        estimate: What is known of it now, with its interval.
        newest: Number of trials that are drawn; None draws all.
        width: Width of the figure in inches.
        height: Its height.
    """
    frame, figure = _newest(rows, newest), new_figure(width, height)
    ax = figure.subplots()
    asked = frame[[number in rows.predictions for number in frame.trial]]
    lives = [
        rows.predictions[n]["half_life"] if rows.predictions[n]["is_fitted"] else math.nan
        for n in asked.trial
    ]
    shown = np.where(np.isfinite(lives), lives, np.nan)
    ax.plot(asked.t, shown, ".-", color=MODEL, label="half-life at each ask")
    if estimate is not None and math.isfinite(estimate.half_life) and len(frame):
        low, high = estimate.half_life_interval or (estimate.half_life, estimate.half_life)
        errors = [[estimate.half_life - low], [high - estimate.half_life]]
        now = frame.t.iloc[-1:]
        ax.errorbar(
            now, [estimate.half_life], errors, fmt="D", color=MODEL, capsize=4, label="now, 95 %"
        )
    if not ax.get_lines() or not np.isfinite(lives).any():
        ax.text(0.5, 0.5, "none yet, or no drift", transform=ax.transAxes, ha="center", va="center")
    else:
        ax.set_yscale("log")
        ax.legend(frameon=False, fontsize=9)
    scale, label = rows.labels["time"], "half-life"
    if scale is not None:
        label += f" ({in_units('', scale['unit']).strip()})"
    finish_axes(ax, "", label, plain=True)
    _finish_time(ax)
    return figure


def in_units(number: str, unit: str | None) -> str:
    """Return a number of units of time, such as of ``"1h"``, in words."""
    if unit is None:
        return number
    return f"{number} {unit.removeprefix('1') if unit[1:].isalpha() else f'x {unit}'}"


def _newest(rows: RunRows, newest: int | None) -> pd.DataFrame:
    """Return the newest trials by time."""
    frame = rows.to_frame().sort_values("t", kind="stable")
    return frame if newest is None else frame.tail(newest)


def _draw_predicted(ax: Axes, rows: RunRows, frame: pd.DataFrame) -> None:
    """Draw the mean and the 95 % band of an outcome, as each ask predicted it."""
    asked = frame[[number in rows.predictions for number in frame.trial]]
    if len(asked) == 0:
        return
    asks = [rows.predictions[number] for number in asked.trial]
    mean = np.array([ask["mean"] for ask in asks])
    variances = [ask["variance"] + (ask["noise_variance"] or 0.0) for ask in asks]
    half = BAND * np.sqrt(variances)
    ax.vlines(asked.t, mean - half, mean + half, color=MODEL, alpha=0.35, linewidth=2.5)
    ax.plot(asked.t, mean, "_", color=MODEL, markersize=5, label="predicted, 95 %")
    told = frame[rows.outcome_names[0]].dropna()
    if (spread := told.max() - told.min()) > 0:
        # Before much was known, bands are wider than anything that is to be seen.
        ax.set_ylim(told.min() - 0.15 * spread, told.max() + 0.25 * spread)


def _draw_states(ax: Axes, frame: pd.DataFrame) -> None:
    """Draw when trials without an outcome were asked for, a line for each state."""
    counts = {state: int((frame.state == state).sum()) for state in MARKS if state != "told"}
    shown = [state for state, count in counts.items() if count] or ["open"]
    for row, state in enumerate(shown):
        marker, color = MARKS[state]
        part = frame.t[frame.state == state]
        face = "none" if marker in "os" else color
        ax.plot(part, [row] * len(part), marker, color=color, markersize=6, markerfacecolor=face)
    ax.set_yticks(range(len(shown)), [f"{state} ({counts[state]})" for state in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    finish_axes(ax, "", "")
    _finish_time(ax)


def _finish_time(ax: Axes) -> None:
    """Label the axis of time; dates briefly."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, AutoDateLocator):
        locator = AutoDateLocator(locator.tz, minticks=3, maxticks=6)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, locator.tz))
    ax.set_xlabel("time of the trial")
