"""Backtests: algorithms fitted on one part of a log and played on the rest."""

from tvbo.evaluation.backtesting.backtest import backtest
from tvbo.evaluation.backtesting.play import rolling_folds
from tvbo.evaluation.backtesting.result import BacktestResult

__all__ = [
    "BacktestResult",
    "backtest",
    "rolling_folds",
]
