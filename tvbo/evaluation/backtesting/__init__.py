"""Backtests: algorithms fitted on one part of a log and played on the rest."""

from tvbo.evaluation.backtesting.algorithms import (
    BanditAlgorithm,
    FittedAlgorithm,
    TunedAlgorithm,
    panel_algorithms,
)
from tvbo.evaluation.backtesting.backtest import backtest
from tvbo.evaluation.backtesting.blocks import Estimate, block_estimate
from tvbo.evaluation.backtesting.models import DriftModel, PanelModel, fit_panel_drift
from tvbo.evaluation.backtesting.play import Algorithm, Fold, rolling_folds
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.evaluation.backtesting.simulation import simulate_backtest

__all__ = [
    "Algorithm",
    "BacktestResult",
    "BanditAlgorithm",
    "DriftModel",
    "Estimate",
    "FittedAlgorithm",
    "Fold",
    "PanelModel",
    "TunedAlgorithm",
    "backtest",
    "block_estimate",
    "fit_panel_drift",
    "panel_algorithms",
    "rolling_folds",
    "simulate_backtest",
]
