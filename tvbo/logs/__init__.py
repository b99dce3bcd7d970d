"""Fitting the drift rate of a log: marginal likelihoods, their maximization, profile and report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Imported at first use: a loop takes one of these modules, and the others a tenth of a second.
_MODULES = {
    "DriftFit": "drift_result",
    "DriftFitError": "drift_fit",
    "PanelFit": "panel_report",
    "empirical_covariance": "empirical",
    "fit_drift": "drift_fit",
    "fit_drift_by": "groups",
    "fit_panel": "panel_fit",
    "fit_panels": "groups",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
