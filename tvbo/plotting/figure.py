"""Shared parts of all figures: colors, line styles, axes, bands, names beside lines, files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tvbo.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, distinguishable for the color-blind; line styles for print in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999", "#56B4E9", "#E69F00")
# Of the figures of a run, one for each thing.
TOLD, FAILED, MODEL, OPEN, BEST = (COLORS[place] for place in (0, 1, 2, 4, 6))
LINES: tuple[str | tuple, ...] = (
    "-",
    "--",
    "-.",
    (0, (5, 1, 1, 1, 1, 1)),
    ":",
    (0, (9, 2)),
    (0, (3, 1, 1, 1)),
)
DPI = 150

BAND = 1.96
"""Half the width of a 95 % band, in standard deviations."""

ALGORITHM_COLORS = {
    "tv-gp-ucb": "#0072B2",
    "tvbo": "#0072B2",
    "r-gp-ucb": "#D55E00",
    "gp-ucb": "#009E73",
    "ordinary bayesian optimization": "#009E73",
    "rexp3": "#CC79A7",
    "random": "#999999",
    "best arm": "#56B4E9",
    "always-best": "#56B4E9",
    "last-best": "#E69F00",
    "sw-ucb": "#AA4499",
    "d-ucb": "#8B5A2B",
    "sliding window": "#6A3D9A",
    "fitted": "#000000",
    "untuned": "#555555",
    "independent": "#117733",
    "vector": "#882255",
    "best-of-hour": "#332288",
    "weighted-means": "#B8860B",
    "cgp-ucb": "#0072B2",
    "tv-cgp-ucb": "#56B4E9",
    "merged": "#D55E00",
    "merged, prior": "#CC79A7",
    "merged, drift": "#E69F00",
    "separate": "#009E73",
    "separate, prior": "#999999",
    "bpe-delay": "#0072B2",
    "bpe": "#D55E00",
    "gp-ucb-sdf": "#CC79A7",
    "gp-ts-sdf": "#56B4E9",
    "gp-bucb": "#E69F00",
}
"""The color of each algorithm in all figures. A name has that of the longest key it begins with."""


def algorithm_styles(names: Iterable[str]) -> dict[str, tuple[str, str | tuple]]:
    """Return the color and the line style of each algorithm.

    The color is that of ``ALGORITHM_COLORS``; other names have the colors that are left. Line
    styles follow the order, so that variants of one algorithm differ.
    """
    colors = {}
    for name in names:
        key = name.casefold().replace("_", "-")
        known = [each for each in ALGORITHM_COLORS if key.startswith(each)]
        colors[name] = ALGORITHM_COLORS[max(known, key=len)] if known else ""
    others = cycle([each for each in COLORS if each not in colors.values()] or COLORS)
    pairs = zip(colors.items(), cycle(LINES), strict=False)
    return {name: (color or next(others), line) for (name, color), line in pairs}


def draw_band(ax: Axes, x: Any, mean: Tensor, width: Tensor, color: str, **options: Any) -> None:
    """Draw the band between ``mean - width`` and ``mean + width``; options of ``fill_between``."""
    given: dict[str, Any] = {"color": color, "alpha": 0.2, "linewidth": 0} | options
    ax.fill_between(x, mean - width, mean + width, **given)


def finish_axes(ax: Axes, xlabel: str, ylabel: str, *, plain: bool = False) -> None:
    """Label the axes and draw a grid; plain labels, as of a file, hold no mathematics."""
    ax.set_xlabel(visible(xlabel) if plain else xlabel, parse_math=not plain)
    ax.set_ylabel(visible(ylabel) if plain else ylabel, parse_math=not plain)
    ax.grid(alpha=0.3)


def legend_above(ax: Axes) -> None:
    """Put a legend of two columns above the axes."""
    ax.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def name_lines(ax: Axes, width: int = 40, fontsize: float = 9) -> None:
    """Write the labels of the lines beside the axes, each in its color, in the order of their ends.

    Args:
        ax: The axes.
        width: Characters after which a name goes on in the next line.
        fontsize: Size of the names in points.
    """
    lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_child")]
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    names = [fill(visible(str(line.get_label())), width) for line in lines]
    legend = ax.legend(
        lines,
        names,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
        fontsize=fontsize,
        labelcolor="linecolor",
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def save_figure(figure: Figure, path: str | Path | IO[bytes], dpi: int = DPI) -> None:
    """Write a figure in the format of the file's ending, else as PNG, ``dpi`` pixels per inch."""
    figure.savefig(path, dpi=dpi, bbox_inches="tight")


def new_figure(width: float = 7.0, height: float = 4.2, title: str = "") -> Figure:
    """Return an empty figure without a window, with sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(visible(title), fontsize=10, parse_math=False)
    return figure
