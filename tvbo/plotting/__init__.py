"""Pictures: regret over time, what a fit says, what a demo did."""

from tvbo.plotting.drift_fit import plot_drift_fit
from tvbo.plotting.figure import COLORS, LINES, new_figure, save_figure
from tvbo.plotting.regret import plot_average_regret, plot_regret_against, plot_regret_panels
from tvbo.plotting.tracking import plot_tracking

__all__ = [
    "COLORS",
    "LINES",
    "new_figure",
    "plot_average_regret",
    "plot_drift_fit",
    "plot_regret_against",
    "plot_regret_panels",
    "plot_tracking",
    "save_figure",
]
