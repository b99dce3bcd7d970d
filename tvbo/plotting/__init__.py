"""Figures: regret, backtests, fits, diagnoses, runs, tracking, policies."""

from tvbo.plotting.backtest import plot_backtest
from tvbo.plotting.diagnosis import plot_diagnosis
from tvbo.plotting.drift_fit import plot_drift_fit
from tvbo.plotting.figure import save_figure
from tvbo.plotting.panel_fit import plot_panel_fit
from tvbo.plotting.policy import plot_policy

__all__ = [
    "plot_backtest",
    "plot_diagnosis",
    "plot_drift_fit",
    "plot_panel_fit",
    "plot_policy",
    "save_figure",
]
