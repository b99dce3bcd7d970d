"""BoTorch models whose function drifts in time."""

from tvbo.models.drift_fit import DriftFit, DriftFitError, fit_drift
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = ["DriftFit", "DriftFitError", "TimeVaryingGP", "fit_drift"]
