"""Figure of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tvbo.evaluation import Diagnosis
from tvbo.plotting.figure import COLORS, finish_axes, new_figure
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
    figure = new_figure(9.0, 8.0, title)
    (errors, pit), (half_life, lengths), (deviations, size) = figure.subplots(3, 2)
    trials, parameters = diagnosis.trials, diagnosis.parameters
    _draw_errors(errors, diagnosis)
    values = diagnosis.calibration.pit
    pit.hist(values.tolist(), bins=BINS, range=(0, 1), color=COLORS[0], alpha=0.8)
    pit.axhline(len(values) / BINS, color="black", linestyle="--", linewidth=1)
    pit.set_xlim(0, 1)
    pit.set_title("Of a right model, bars are near the line", fontsize=10)
    finish_axes(pit, "probability of a smaller outcome", "outcomes")
    lives = torch.tensor([each.half_life if each.is_fitted else math.nan for each in trials])
    by_form = {
        form: lives.where(torch.tensor([each == form for each in diagnosis.forms]), math.nan)
        for form in dict.fromkeys(diagnosis.forms)
    }
    _draw_series(half_life, by_form, "half-life of correlation", ("o", "s", "^", "v", "D"))
    scales = {
        name.removeprefix("lengthscale_"): series
        for name, series in parameters.items()
        if name.startswith("lengthscale")
    }
    _draw_series(lengths, scales, "length-scale")
    spreads = {
        name.removesuffix("_deviation"): series
        for name, series in parameters.items()
        if name.endswith("_deviation")
    }
    _draw_series(deviations, spreads, "standard deviation")
    rounds = range(1, len(trials) + 1)
    size.plot(rounds, diagnosis.model_size, color=COLORS[0])
    finish_axes(size, "round", "observations held")
    if diagnosis.ask_seconds is not None:
        other = size.twinx()
        other.plot(rounds, diagnosis.ask_seconds, color=COLORS[1], linewidth=0.8)
        other.set_ylabel("seconds of the ask", color=COLORS[1])
        other.set_ylim(bottom=0)
    for ax in (errors, half_life, lengths, deviations, size):
        ax.set_xlim(0, len(trials) + 1)
    return figure


def _draw_errors(ax: Axes, diagnosis: Diagnosis) -> None:
    calibration = diagnosis.calibration
    numbers = {each.prediction.trial_id: i for i, each in enumerate(diagnosis.trials, start=1)}
    judged = [each for each in diagnosis.trials if each.is_judged]
    outliers = sorted(calibration.outliers, key=lambda trial: -abs(trial.z))
    ax.axhspan(-BAND, BAND, color=COLORS[0], alpha=0.12, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.8)
    for shown, marker, color, markersize in (
        (judged, "o", COLORS[0], 3),
        (outliers, "s", COLORS[1], 4),
    ):
        places = [numbers[each.prediction.trial_id] for each in shown]
        ax.plot(places, [each.z for each in shown], marker, color=color, markersize=markersize)
    for each in outliers[:NAMED]:
        name = each.prediction.trial_id
        place = (numbers[name], each.z)
        ax.annotate(str(name), place, (4, 2), textcoords="offset points", fontsize=8)
    ax.set_title(f"{calibration.coverage:.0%} of {len(calibration)} in the band", fontsize=10)
    finish_axes(ax, "round", "error, in predictive deviations")


def _draw_series(
    ax: Axes, values: Mapping[str, torch.Tensor], label: str, markers: Sequence[str] = ()
) -> None:
    """Draw values by round: marks if there are markers, else lines.

    The axis begins at zero, or is logarithmic where values span orders of magnitude.
    """
    for i, (name, color) in enumerate(zip(values, COLORS, strict=False)):
        if not values[name].isfinite().any():
            continue
        style: dict[str, Any] = (
            {"marker": markers[i], "linestyle": "", "markersize": 3} if markers else {}
        )
        words = visible(name).replace("_", " ")
        rounds = range(1, len(values[name]) + 1)
        ax.plot(rounds, values[name], color=color, label=words, linewidth=1.4, **style)
    finish_axes(ax, "round", label)
    shown = torch.cat([torch.empty(0), *values.values()])
    positive = shown[shown.isfinite() & (shown > 0)]
    if len(positive) and positive.max() > WIDE * positive.min():
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    if ax.lines:
        ax.legend(frameon=False, fontsize=8)
