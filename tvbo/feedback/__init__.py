"""Outcomes that come late, out of order, or never."""

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
from tvbo.feedback.pending import Hallucinate, IgnorePending, Minimum, Pending

__all__ = [
    "ConstantDelay",
    "Delay",
    "DistributionDelay",
    "ExponentialDelay",
    "GeometricDelay",
    "Hallucinate",
    "IgnorePending",
    "LossyDelay",
    "Minimum",
    "Pending",
    "PoissonDelay",
    "ResampledDelay",
]
