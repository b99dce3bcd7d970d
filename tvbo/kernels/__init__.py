"""GPyTorch kernels: time, actions and contexts, fixed and learned covariances."""

from tvbo.kernels.context_action import ContextActionKernel
from tvbo.kernels.finite import CovarianceMatrixKernel, IdentityKernel, TaskKernel
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)

__all__ = [
    "ConstantTemporalKernel",
    "ContextActionKernel",
    "CovarianceMatrixKernel",
    "IdentityKernel",
    "SeasonalKernel",
    "TaskKernel",
    "TemporalDecayKernel",
    "TemporalKernel",
    "TemporalMaternKernel",
]
