"""Runs of an optimizer with their history, simulated delays, backtests, diagnosis."""

from tvbo.evaluation.backtesting.backtest import backtest, rolling_folds
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.evaluation.delays import RandomDelay
from tvbo.evaluation.diagnosis import Diagnosis, DiagnosisError, diagnose
from tvbo.evaluation.evaluations import EvaluationError, dask_executor
from tvbo.evaluation.history import History
from tvbo.evaluation.run import run, run_async

__all__ = [
    "BacktestResult",
    "Diagnosis",
    "DiagnosisError",
    "EvaluationError",
    "History",
    "RandomDelay",
    "backtest",
    "dask_executor",
    "diagnose",
    "rolling_folds",
    "run",
    "run_async",
]
