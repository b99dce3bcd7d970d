"""BoTorch models whose function drifts in time."""

from tvbo.models.drift_fit import DriftFitError, fit_drift
from tvbo.models.drift_report import DriftFit
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = ["DriftFit", "DriftFitError", "TimeVaryingGP", "fit_drift"]
