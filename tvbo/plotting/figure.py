"""Shared parts of all figures: colors, line styles, new figures, files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colors, distinguishable for the color-blind; line styles for print in gray.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999", "#56B4E9", "#E69F00")
LINES = (
    "-",
    "--",
    "-.",
    (0, (5, 1, 1, 1, 1, 1)),
    ":",
    (0, (9, 2)),
    (0, (3, 1, 1, 1)),
)
DPI = 150


def save_figure(figure: Figure, path: str | Path, dpi: int = DPI) -> None:
    """Write a figure in the format of the file's ending, with ``dpi`` pixels per inch."""
    figure.savefig(path, dpi=dpi, bbox_inches="tight")


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """Return an empty figure without a window, with sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
