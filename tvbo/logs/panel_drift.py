"""The drift rate of a panel with its own empirical covariance."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance
from tvbo.logs.drift_fit import fit_drift
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.panel import panel_rows


def fit_panel_drift(
    values: Tensor,
    times: Tensor,
    time_unit: str = "1",
    arms: Sequence[str] | None = None,
    *,
    noise_variance: float | None = None,
    level: float = 0.95,
    progress: bool = True,
) -> DriftFit:
    """Fit ε and noise of a panel with its own empirical covariance and one mean.

    Args:
        values: ``T x n``; NaN where there is none.
        times: ``T``.
        time_unit: Name of the unit of time.
        arms: Names of the arms, for errors.
        noise_variance: σ², in squared units of the values; None learns it.
        level: Confidence of the interval of ε.
        progress: Show a progress bar on stderr.

    Raises:
        InputDataError: if two arms have no common time, or the log cannot be fitted.
    """
    train_X, train_Y = panel_rows(values, times)
    return fit_drift(
        train_X,
        train_Y,
        covar_module=CovarianceMatrixKernel(empirical_covariance(values, arms)),
        noise_variance=noise_variance,
        mean=values.nanmean().item(),
        time_unit=time_unit,
        level=level,
        # The covariance was estimated with them.
        outliers=False,
        progress=progress,
    )
