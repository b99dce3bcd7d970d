"""GPyTorch kernels: time, actions and contexts, fixed and learned covariances."""

from tvbo.kernels.context_action import ContextActionKernel
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel
from tvbo.kernels.empirical import empirical_covariance
from tvbo.kernels.identity import IdentityKernel
from tvbo.kernels.task import TaskKernel
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.temporal_base import TemporalKernel

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
    "empirical_covariance",
]
