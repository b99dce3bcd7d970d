"""Outcomes that come late, out of order, or never."""

from tvbo.feedback.async_history import AsyncHistory, AsyncRound
from tvbo.feedback.asynchronous import run_async
from tvbo.feedback.dask_executor import dask_executor
from tvbo.feedback.delays import (
    ConstantDelay,
    Delay,
    DistributionDelay,
    ExponentialDelay,
    GeometricDelay,
    LossyDelay,
    PoissonDelay,
    ResampledDelay,
)

__all__ = [
    "AsyncHistory",
    "AsyncRound",
    "ConstantDelay",
    "Delay",
    "DistributionDelay",
    "ExponentialDelay",
    "GeometricDelay",
    "LossyDelay",
    "PoissonDelay",
    "ResampledDelay",
    "dask_executor",
    "run_async",
]
