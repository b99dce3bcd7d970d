"""GPyTorch kernels: forgetting in time, fixed covariance matrices."""

from tvbo.kernels.column import ColumnKernel
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel
from tvbo.kernels.temporal import TemporalDecayKernel, temporal_correlation

__all__ = ["ColumnKernel", "CovarianceMatrixKernel", "TemporalDecayKernel", "temporal_correlation"]
