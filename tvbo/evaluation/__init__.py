"""Runs of an optimizer, simulated delays, batched simulation, backtests, history, diagnosis."""

from tvbo.evaluation.asynchronous import run_async
from tvbo.evaluation.backtesting import (
    BacktestResult,
    BanditAlgorithm,
    DriftModel,
    Estimate,
    FittedAlgorithm,
    Fold,
    PanelModel,
    TunedAlgorithm,
    backtest,
    block_estimate,
    panel_algorithms,
    rolling_folds,
    simulate_backtest,
)
from tvbo.evaluation.batched_simulation import Replicates, ucb_sweep
from tvbo.evaluation.block_length import TunedBlockLength, tune_block_length
from tvbo.evaluation.dask_cluster import dask_executor
from tvbo.evaluation.delays import (
    ConstantDelay,
    Delay,
    DistributionDelay,
    ExponentialDelay,
    GeometricDelay,
    LossyDelay,
    PoissonDelay,
    ResampledDelay,
)
from tvbo.evaluation.diagnosis import (
    Calibration,
    Diagnosis,
    DiagnosisError,
    PredictedTrial,
    diagnose,
)
from tvbo.evaluation.exploration import Exploration, tune_exploration
from tvbo.evaluation.history import History, Round
from tvbo.evaluation.objective import EvaluationError
from tvbo.evaluation.synchronous import run

__all__ = [
    "BacktestResult",
    "BanditAlgorithm",
    "Calibration",
    "ConstantDelay",
    "Delay",
    "Diagnosis",
    "DiagnosisError",
    "DistributionDelay",
    "DriftModel",
    "Estimate",
    "EvaluationError",
    "Exploration",
    "ExponentialDelay",
    "FittedAlgorithm",
    "Fold",
    "GeometricDelay",
    "History",
    "LossyDelay",
    "PanelModel",
    "PoissonDelay",
    "PredictedTrial",
    "Replicates",
    "ResampledDelay",
    "Round",
    "TunedAlgorithm",
    "TunedBlockLength",
    "backtest",
    "block_estimate",
    "dask_executor",
    "diagnose",
    "panel_algorithms",
    "rolling_folds",
    "run",
    "run_async",
    "simulate_backtest",
    "tune_block_length",
    "tune_exploration",
    "ucb_sweep",
]
