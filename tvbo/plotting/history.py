"""Figure of a run over time by its rows: what was predicted and came, what was tried, the drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.plotting.figure import BAND, BEST, FAILED, MODEL, OPEN, TOLD, finish_axes, new_figure
from tvbo.plotting.parameters import ParameterAxis, parameter_axes
from tvbo.recommendation import Recommendation
from tvbo.spaces.labels import Labels
from tvbo.storage import RunRows

if TYPE_CHECKING:
    import pandas as pd
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

HEIGHTS = {"outcome": 2.3, "state": 0.3, "parameter": 1.2, "half-life": 1.8}
"""Height of each panel in inches; of the states for each of them."""


def plot_history(
    rows: RunRows,
    title: str = "",
    *,
    best: Recommendation | None = None,
    drift: DriftEstimate | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
    newest: int | None = None,
    width: float = 8.0,
) -> Figure:
    """Plot a run over time.

    One below another: each outcome, with its 95 % band as it was predicted at each ask, noise
    included; the trials without an outcome; each parameter as it was tried, and the best action
    tried, as each ask judged it; the half-life of the correlation over time, as each ask knew it.

    Args:
        rows: The rows of a run, of :func:`tvbo.storage.read_run`.
        title: Title of the figure.
        best: What is recommended now, drawn as a star.
        drift: What is known of the half-life now, drawn with its 95 % interval.
        limits: Lower and upper limits of outcomes by name, drawn dashed.
        newest: Number of trials that are drawn, the newest; None draws all.
        width: Width of the figure in inches.
    """
    shown = rows.trials if newest is None else rows.trials[-newest:]
    frame = replace(rows, trials=shown).to_frame().sort_values("t", kind="stable")
    names, labels = rows.outcome_names, Labels.from_json(rows.labels)
    states = [state for state in MARKS if state != "told" and (frame.state == state).any()]
    parameters = parameter_axes(labels.actions, len(rows.trials[0].X)) if rows.trials else []
    asked = frame[frame.trial.isin(list(rows.predictions))]
    has_life = any(rows.predictions[number]["is_fitted"] for number in asked.trial)
    heights = [HEIGHTS["outcome"]] * len(names)
    heights += [0.3 + HEIGHTS["state"] * len(states)] * bool(states)
    heights += [HEIGHTS["parameter"]] * len(parameters) + [HEIGHTS["half-life"]] * has_life
    figure = new_figure(width, 0.6 + sum(heights), title)
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    following = iter(axes)
    for place, name in enumerate(names):
        _draw_outcome(next(following), rows, frame, place, (limits or {}).get(name, ()))
    if states:
        _draw_states(next(following), frame, states)
    for each in parameters:
        _draw_parameter(next(following), rows, frame, each, best)
    if parameters:
        _add_legend(axes[-len(parameters) - has_life])
    if has_life:
        _draw_half_life(next(following), rows, asked, drift)
    _finish_time(axes[-1])
    return figure


def _draw_outcome(
    ax: Axes, rows: RunRows, frame: pd.DataFrame, place: int, limits: tuple[float, ...]
) -> None:
    """Draw an outcome, of the first with the band that each ask predicted."""
    name = rows.outcome_names[place]
    told = frame[frame.state == "told"]
    asked = frame[frame.trial.isin(list(rows.predictions))]
    if place == 0 and len(asked):
        asks = [rows.predictions[number] for number in asked.trial]
        mean = np.array([ask["mean"] for ask in asks])
        half = BAND * np.sqrt([ask["variance"] + (ask["noise_variance"] or 0.0) for ask in asks])
        ax.vlines(asked.t, mean - half, mean + half, color=MODEL, alpha=0.35, linewidth=2.5)
        ax.plot(asked.t, mean, "_", color=MODEL, markersize=5, label="predicted, 95 %")
        if (spread := told[name].max() - told[name].min()) > 0:
            # Before much was known, bands are wider than anything that is to be seen.
            ax.set_ylim(told[name].min() - 0.15 * spread, told[name].max() + 0.25 * spread)
    if (noise := told[f"{name}_variance"] ** 0.5).notna().any():
        ax.errorbar(told.t, told[name], noise, fmt="none", color=TOLD, alpha=0.4)
    ax.plot(told.t, told[name], "o", color=TOLD, markersize=3.5, label="outcome")
    for limit in filter(math.isfinite, limits):
        ax.axhline(limit, color=FAILED, linestyle="--", linewidth=1, label="limit")
    finish_axes(ax, "", name, plain=True)
    _add_legend(ax)


def _draw_states(ax: Axes, frame: pd.DataFrame, states: list[str]) -> None:
    """Draw when trials without an outcome were asked for, a line for each state."""
    for place, state in enumerate(states):
        (marker, color), t = MARKS[state], frame.t[frame.state == state]
        face = "none" if marker in "os" else color
        ax.plot(t, [place] * len(t), marker, color=color, markersize=6, markerfacecolor=face)
    ax.set_yticks(range(len(states)), states)
    ax.set_ylim(len(states) - 0.4, -0.6)
    finish_axes(ax, "", "")


def _draw_parameter(
    ax: Axes,
    rows: RunRows,
    frame: pd.DataFrame,
    parameter: ParameterAxis,
    best: Recommendation | None,
) -> None:
    """Draw what was tried of a parameter, and what was best."""
    for state, (marker, color) in MARKS.items():
        part = frame[frame.state == state]
        places = parameter.places(part[parameter.name])
        ax.plot(part.t, places, marker, color=color, markersize=4, alpha=0.6)
    found = {n: ask["best"] for n, ask in rows.predictions.items() if ask["best"]}
    part = frame[frame.trial.isin(list(found))]
    if len(part):
        X = torch.tensor([found[number] for number in part.trial], dtype=torch.float64)
        places = parameter.values(X)
        ax.plot(part.t, places, color=BEST, drawstyle="steps-post", label="best tried")
    if best is not None:
        now = [best.labels.stamp(best.t)]
        ax.plot(now, parameter.values(best.X), "*", color=BEST, markersize=13, label="best now")
    finish_axes(ax, "", "")
    parameter.finish(ax, "y")


def _draw_half_life(
    ax: Axes, rows: RunRows, asked: pd.DataFrame, drift: DriftEstimate | None
) -> None:
    """Draw the half-life as each ask knew it, and now."""
    asks = [rows.predictions[number] for number in asked.trial]
    lives = np.array([ask["half_life"] if ask["is_fitted"] else math.nan for ask in asks])
    lives[~np.isfinite(lives)] = math.nan
    ax.plot(asked.t, lives, ".-", color=MODEL, label="half-life")
    if drift is not None and math.isfinite(drift.half_life):
        low, high = drift.half_life_interval or (drift.half_life, drift.half_life)
        errors = [[drift.half_life - low], [high - drift.half_life]]
        now = asked.t.iloc[-1:]
        ax.errorbar(now, [drift.half_life], errors, fmt="D", color=MODEL, capsize=4, label="now")
    if np.isfinite(lives).any():
        ax.set_yscale("log")
    scale = rows.labels["time"]
    finish_axes(ax, "", "half-life" if scale is None else f"half-life, x {scale['unit']}")
    _add_legend(ax)


def _add_legend(ax: Axes) -> None:
    """Say above the axes what is drawn in them."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(
            frameon=False, fontsize=8.5, ncols=3, loc="lower right", bbox_to_anchor=(1.02, 0.96)
        )


def _finish_time(ax: Axes) -> None:
    """Label the axis of time; dates briefly."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, AutoDateLocator):
        locator = AutoDateLocator(locator.tz, minticks=3, maxticks=6)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, locator.tz))
    ax.set_xlabel("time of the trial")
