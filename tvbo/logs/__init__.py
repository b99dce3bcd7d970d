"""Fitting the drift rate of a log: marginal likelihoods, their maximization, profile and report."""

from tvbo.logs.drift_fit import DriftFitError, fit_drift
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.empirical import empirical_covariance
from tvbo.logs.groups import fit_drift_by, fit_panels
from tvbo.logs.panel_fit import fit_panel
from tvbo.logs.panel_report import PanelFit

__all__ = [
    "DriftFit",
    "DriftFitError",
    "PanelFit",
    "empirical_covariance",
    "fit_drift",
    "fit_drift_by",
    "fit_panel",
    "fit_panels",
]
