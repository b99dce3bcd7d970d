"""Figures: regret, backtests, fits, diagnoses, runs, tracking."""

from tvbo.plotting.backtest import plot_backtest
from tvbo.plotting.diagnosis import plot_diagnosis
from tvbo.plotting.drift_fit import plot_drift_fit
from tvbo.plotting.figure import save_figure
from tvbo.plotting.history import plot_history
from tvbo.plotting.live import live
from tvbo.plotting.panel_fit import plot_panel_fit
from tvbo.plotting.slices import plot_slices

__all__ = [
    "live",
    "plot_backtest",
    "plot_diagnosis",
    "plot_drift_fit",
    "plot_history",
    "plot_panel_fit",
    "plot_slices",
    "save_figure",
]
