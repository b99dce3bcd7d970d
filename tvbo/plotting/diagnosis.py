"""Figure of a diagnosis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from tvbo.evaluation import Diagnosis
from tvbo.plotting.figure import COLORS, new_figure
from tvbo.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 10

NAMED = 5
"""Number of outliers whose trial is named."""

WIDE = 30.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""

BAND = 1.959964
"""Half the width of the central 95 % band, in standard deviations."""


def plot_diagnosis(diagnosis: Diagnosis, title: str = "") -> Figure:
    """Plot the errors of the predictions over the rounds, their PIT, and the hyperparameters.

    Args:
        diagnosis: The diagnosis.
        title: Title of the figure.
    """
    figure = new_figure(9.0, 8.0)
    axes = figure.subplots(3, 2)
    _draw_errors(axes[0, 0], diagnosis)
    _draw_pit(axes[0, 1], diagnosis)
    rounds = range(1, len(diagnosis.trials) + 1)
    lives = [trial.half_life if trial.is_fitted else math.nan for trial in diagnosis.trials]
    _draw_half_life(axes[1, 0], diagnosis, lives)
    parameters = diagnosis.parameters
    scales = {k: v for k, v in parameters.items() if k.startswith("lengthscale")}
    _draw_lines(axes[1, 1], scales, "length-scale")
    deviations = {k: v for k, v in parameters.items() if k.endswith("_deviation")}
    _draw_lines(axes[2, 0], deviations, "standard deviation")
    size = axes[2, 1]
    size.plot(rounds, diagnosis.model_size, color=COLORS[0])
    size.set_ylabel("observations held")
    if diagnosis.ask_seconds is not None:
        other = size.twinx()
        other.plot(rounds, diagnosis.ask_seconds, color=COLORS[1], linewidth=0.8)
        other.set_ylabel("seconds of the ask", color=COLORS[1])
        other.set_ylim(bottom=0)
    for ax in axes.flatten():
        ax.grid(alpha=0.3)
        if ax is not axes[0, 1]:
            ax.set_xlabel("round")
            ax.set_xlim(0, len(diagnosis.trials) + 1)
    if title:
        figure.suptitle(visible(title), fontsize=10, parse_math=False)
    return figure


def _draw_errors(ax: Axes, diagnosis: Diagnosis) -> None:
    calibration = diagnosis.calibration
    ax.axhspan(-BAND, BAND, color=COLORS[0], alpha=0.12, linewidth=0)
    judged = [
        (number, trial.z)
        for number, trial in enumerate(diagnosis.trials, start=1)
        if trial.is_judged
    ]
    far = {trial.prediction.trial_id for trial in calibration.outliers}
    worst = sorted(calibration.outliers, key=lambda trial: -abs(trial.z))
    named = {trial.prediction.trial_id for trial in worst[:NAMED]}
    ax.axhline(0, color="black", linewidth=0.8)
    if judged:
        ax.plot(*zip(*judged, strict=True), "o", color=COLORS[0], markersize=3)
    for number, trial in enumerate(diagnosis.trials, start=1):
        if (name := trial.prediction.trial_id) in far:
            ax.plot(number, trial.z, "s", color=COLORS[1], markersize=4)
        if name in named:
            ax.annotate(
                str(name), (number, trial.z), (4, 2), textcoords="offset points", fontsize=8
            )
    ax.set_ylabel("error, in predictive deviations")
    ax.set_title(f"{calibration.coverage:.0%} of {len(calibration)} in the band", fontsize=10)


def _draw_pit(ax: Axes, diagnosis: Diagnosis) -> None:
    pit = diagnosis.calibration.pit
    ax.hist(pit.tolist(), bins=BINS, range=(0, 1), color=COLORS[0], alpha=0.8)
    ax.axhline(len(pit) / BINS, color="black", linestyle="--", linewidth=1)
    ax.set_xlim(0, 1)
    ax.set_xlabel("probability of a smaller outcome")
    ax.set_ylabel("outcomes")
    ax.set_title("Of a right model, bars are near the line", fontsize=10)


def _draw_half_life(ax: Axes, diagnosis: Diagnosis, lives: list[float]) -> None:
    for (form, marker), color in zip(
        zip(dict.fromkeys(diagnosis.forms), "os^vD", strict=False), COLORS, strict=False
    ):
        shown = [
            (number, life)
            for number, (life, each) in enumerate(zip(lives, diagnosis.forms, strict=True), start=1)
            if each == form and math.isfinite(life)
        ]
        if shown:
            label = visible(form)
            ax.plot(*zip(*shown, strict=True), marker, color=color, markersize=3, label=label)
    ax.set_ylabel("half-life of correlation")
    _scale(ax, lives)
    if ax.lines:
        ax.legend(frameon=False, fontsize=8)


def _draw_lines(ax: Axes, values: dict[str, torch.Tensor], label: str) -> None:
    for (name, series), color in zip(values.items(), COLORS, strict=False):
        words = visible(name.removesuffix("_deviation").removeprefix("lengthscale_"))
        words = words.replace("_", " ")
        ax.plot(range(1, len(series) + 1), series, color=color, label=words, linewidth=1.4)
    ax.set_ylabel(label)
    _scale(ax, [value for series in values.values() for value in series.tolist()])
    if values:
        ax.legend(frameon=False, fontsize=8)


def _scale(ax: Axes, values: list[float]) -> None:
    """Begin at zero, or take logarithms of values that span orders of magnitude."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    if positive and max(positive) > WIDE * min(positive):
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
