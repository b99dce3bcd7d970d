"""Backtests: algorithms fitted on one part of a log and played on the rest."""

from tvbo.evaluation.backtesting.algorithms import panel_algorithms
from tvbo.evaluation.backtesting.backtest import backtest, simulate_backtest
from tvbo.evaluation.backtesting.play import Fold, rolling_folds
from tvbo.evaluation.backtesting.result import BacktestResult

__all__ = [
    "BacktestResult",
    "Fold",
    "backtest",
    "panel_algorithms",
    "rolling_folds",
    "simulate_backtest",
]
