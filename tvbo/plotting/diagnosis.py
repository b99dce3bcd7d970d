"""Figure of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvbo.evaluation import Diagnosis
from tvbo.plotting.figure import BAND, COLORS, finish_axes, new_figure
from tvbo.terminal import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 10

MANY = 1_000
"""Number of errors above which they are drawn as an image."""

NAMED = 5
"""Number of outliers whose trial is named."""

WIDE = 30.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


def plot_diagnosis(diagnosis: Diagnosis, title: str = "") -> Figure:
    """Plot the errors of the predictions over the rounds, their PIT, and the hyperparameters.

    Args:
        diagnosis: The diagnosis.
        title: Title of the figure.
    """
    figure = new_figure(9.0, 8.0, title)
    (errors, pit), (half_life, lengths), (deviations, size) = figure.subplots(3, 2)
    frame = diagnosis.trials.set_axis(range(1, len(diagnosis.trials) + 1))
    draw_errors(errors, diagnosis)
    values = frame.pit[frame.judged]
    pit.hist(values, bins=BINS, range=(0, 1), color=COLORS[0], alpha=0.8)
    pit.axhline(len(values) / BINS, color="black", linestyle="--", linewidth=1)
    pit.set_xlim(0, 1)
    pit.set_title("Of a right model, bars are near the line", fontsize=10)
    finish_axes(pit, "probability of a smaller outcome", "outcomes")
    lives = frame.half_life.where(frame.fitted)
    by_form = {form: lives.where(frame.form == form) for form in frame.form.unique()}
    _draw_series(half_life, by_form, "half-life of correlation")
    scales, spreads = frame.filter(regex="^lengthscale"), frame.filter(regex="_deviation$")
    lengthscales = {name.removeprefix("lengthscale_"): each for name, each in scales.items()}
    _draw_series(lengths, lengthscales, "length-scale")
    by_source = {name.removesuffix("_deviation"): each for name, each in spreads.items()}
    _draw_series(deviations, by_source, "standard deviation")
    size.plot(frame.model_size, color=COLORS[0])
    finish_axes(size, "round", "observations held")
    other = size.twinx()
    other.plot(frame.ask_seconds, color=COLORS[1], linewidth=0.8)
    other.set_ylabel("seconds of the ask", color=COLORS[1])
    other.set_ylim(bottom=0)
    for ax in (errors, half_life, lengths, deviations, size):
        ax.set_xlim(0, len(frame) + 1)
    return figure


def draw_errors(ax: Axes, diagnosis: Diagnosis) -> None:
    """Draw the errors of the predictions over the rounds."""
    calibration = diagnosis.calibration
    frame = diagnosis.trials.set_axis(range(1, len(diagnosis.trials) + 1))
    z = frame.z[frame.judged]
    outliers = z[z.abs() > calibration.outlier_limit]
    ax.axhspan(-BAND, BAND, color=COLORS[0], alpha=0.12, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.8)
    # Within a picture of lines, many points are one image.
    ax.plot(z, "o", color=COLORS[0], markersize=3, rasterized=len(z) > MANY)
    ax.plot(outliers, "s", color=COLORS[1], markersize=4)
    for place in outliers.abs().nlargest(NAMED).index:
        ax.annotate(
            str(frame.trial[place]),
            (place, z[place]),
            (4, 2),
            textcoords="offset points",
            fontsize=8,
        )
    ax.set_title(f"{calibration.coverage:.0%} of {len(z)} in the band", fontsize=10)
    finish_axes(ax, "round", "error, in predictive deviations")


def _draw_series(ax: Axes, values: Mapping[str, pd.Series], label: str) -> None:
    """Draw values by round.

    The axis begins at zero, or is logarithmic where values span orders of magnitude.
    """
    for name, color in zip(values, COLORS, strict=False):
        if np.isfinite(values[name]).any():
            words = visible(name).replace("_", " ")
            # A form of drift may have single rounds, of which a line alone would show none.
            ax.plot(values[name], ".-", color=color, label=words, linewidth=1.4, markersize=4)
    finish_axes(ax, "round", label)
    shown = np.array(list(values.values()))
    positive = shown[np.isfinite(shown) & (shown > 0)]
    if len(positive) and positive.max() > WIDE * positive.min():
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    if ax.lines:
        ax.legend(frameon=False, fontsize=8)
