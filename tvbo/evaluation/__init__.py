"""Runs of an optimizer: objectives, executors, simulated delays, batched simulation, history."""

from tvbo.evaluation.asynchronous import run_async
from tvbo.evaluation.batched_simulation import Replicates, ucb_sweep
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
from tvbo.evaluation.history import History, Round
from tvbo.evaluation.synchronous import run

__all__ = [
    "ConstantDelay",
    "Delay",
    "DistributionDelay",
    "ExponentialDelay",
    "GeometricDelay",
    "History",
    "LossyDelay",
    "PoissonDelay",
    "Replicates",
    "ResampledDelay",
    "Round",
    "dask_executor",
    "run",
    "run_async",
    "ucb_sweep",
]
