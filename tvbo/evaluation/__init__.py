"""Runs of an optimizer with their history, simulated delays, backtests, diagnosis."""

from tvbo.evaluation.backtesting import BacktestResult, backtest, rolling_folds
from tvbo.evaluation.dask_cluster import dask_executor
from tvbo.evaluation.delays import LossyDelay, RandomDelay
from tvbo.evaluation.diagnosis import Diagnosis, DiagnosisError, diagnose
from tvbo.evaluation.exploration import tune_exploration
from tvbo.evaluation.history import History
from tvbo.evaluation.objective import EvaluationError
from tvbo.evaluation.run import run, run_async

__all__ = [
    "BacktestResult",
    "Diagnosis",
    "DiagnosisError",
    "EvaluationError",
    "History",
    "LossyDelay",
    "RandomDelay",
    "backtest",
    "dask_executor",
    "diagnose",
    "rolling_folds",
    "run",
    "run_async",
    "tune_exploration",
]
