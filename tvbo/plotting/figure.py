"""What all pictures share: an empty figure, colours, lines, a file."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by the colour-blind; line styles survive a grey printer.
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


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure, in the format that the file's name ends with."""
    figure.savefig(path, dpi=DPI, bbox_inches="tight")


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """An empty figure that no window manager knows of."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
