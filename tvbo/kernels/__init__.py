"""GPyTorch kernels: forgetting in time, fixed covariance matrices."""

from tvbo.kernels.column import ColumnKernel
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel
from tvbo.kernels.empirical import empirical_covariance
from tvbo.kernels.temporal import (
    TemporalDecayKernel,
    decay_exponent,
    temporal_correlation,
)

__all__ = [
    "ColumnKernel",
    "CovarianceMatrixKernel",
    "TemporalDecayKernel",
    "decay_exponent",
    "empirical_covariance",
    "temporal_correlation",
]
