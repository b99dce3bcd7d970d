"""Runs of an optimizer with their history, simulated delays, backtests, diagnosis."""

from tvbo.evaluation.backtesting import (
    BacktestResult,
    Fold,
    backtest,
    panel_algorithms,
    rolling_folds,
    simulate_backtest,
)
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
    "Fold",
    "History",
    "LossyDelay",
    "RandomDelay",
    "backtest",
    "dask_executor",
    "diagnose",
    "panel_algorithms",
    "rolling_folds",
    "run",
    "run_async",
    "simulate_backtest",
    "tune_exploration",
]
