"""GPyTorch kernels: decay in time, actions and contexts, fixed and learned covariances."""

from tvbo.kernels.column import ColumnKernel
from tvbo.kernels.context_action import ContextActionKernel, Structure
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel
from tvbo.kernels.empirical import empirical_covariance
from tvbo.kernels.identity import IdentityKernel
from tvbo.kernels.task import TaskKernel
from tvbo.kernels.temporal import (
    TemporalDecayKernel,
    decay_exponent,
    temporal_correlation,
)

__all__ = [
    "ColumnKernel",
    "ContextActionKernel",
    "CovarianceMatrixKernel",
    "IdentityKernel",
    "Structure",
    "TaskKernel",
    "TemporalDecayKernel",
    "decay_exponent",
    "empirical_covariance",
    "temporal_correlation",
]
