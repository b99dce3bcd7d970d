"""Figures: regret, backtests, fits, diagnoses, tracking, policies, kernel parts, compression."""

from tvbo.plotting.backtest import plot_backtest
from tvbo.plotting.compression import plot_budget, plot_model_order
from tvbo.plotting.diagnosis import plot_diagnosis
from tvbo.plotting.drift_fit import plot_drift_fit
from tvbo.plotting.figure import COLORS, LINES, new_figure, save_figure
from tvbo.plotting.kernel_parts import plot_kernel_parts, plot_part
from tvbo.plotting.policy import plot_policy, plot_policy_over_time, plot_posterior_map
from tvbo.plotting.regret import plot_average_regret, plot_regret_against, plot_regret_panels
from tvbo.plotting.tracking import plot_tracking

__all__ = [
    "COLORS",
    "LINES",
    "new_figure",
    "plot_average_regret",
    "plot_backtest",
    "plot_budget",
    "plot_diagnosis",
    "plot_drift_fit",
    "plot_kernel_parts",
    "plot_model_order",
    "plot_part",
    "plot_policy",
    "plot_policy_over_time",
    "plot_posterior_map",
    "plot_regret_against",
    "plot_regret_panels",
    "plot_tracking",
    "save_figure",
]
