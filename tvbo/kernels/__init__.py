"""GPyTorch kernels: time, actions and contexts, fixed and learned covariances."""

from tvbo.kernels.column import ColumnKernel
from tvbo.kernels.context_action import ContextActionKernel, Structure
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel
from tvbo.kernels.empirical import empirical_covariance
from tvbo.kernels.features import has_features
from tvbo.kernels.identity import IdentityKernel
from tvbo.kernels.markov import (
    SeasonalKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.task import TaskKernel
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    TemporalDecayKernel,
    decay_exponent,
    temporal_correlation,
)
from tvbo.kernels.temporal_base import TemporalKernel, memory_length

__all__ = [
    "ColumnKernel",
    "ConstantTemporalKernel",
    "ContextActionKernel",
    "CovarianceMatrixKernel",
    "IdentityKernel",
    "SeasonalKernel",
    "Structure",
    "TaskKernel",
    "TemporalDecayKernel",
    "TemporalKernel",
    "TemporalMaternKernel",
    "decay_exponent",
    "empirical_covariance",
    "has_features",
    "memory_length",
    "temporal_correlation",
]
