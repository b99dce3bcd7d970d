"""Fitting the drift rate of a log: marginal likelihoods, their maximization, profile and report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvbo.logs.blocks import BlockLikelihood
    from tvbo.logs.dataset import DriftLog, Panel, outcome_unit
    from tvbo.logs.dense import DenseLikelihood
    from tvbo.logs.drift_comparison import DriftComparison
    from tvbo.logs.drift_fit import DriftFitError, fit_drift, make_likelihood
    from tvbo.logs.drift_result import DriftFit
    from tvbo.logs.groups import FitOptions, GroupedDriftFit, fit_drift_by
    from tvbo.logs.maximize import LikelihoodMaximizer
    from tvbo.logs.outliers import OutlierSearch
    from tvbo.logs.panel import PanelLikelihood, panel_rows, panel_segments
    from tvbo.logs.panel_evidence import PanelCandidate
    from tvbo.logs.panel_fit import fit_panel
    from tvbo.logs.panel_report import PanelFit, PanelForecast
    from tvbo.logs.parameters import NuisanceParameters, Optimum
    from tvbo.logs.profile import Profile, profile_rate, rates_at_noise, steps
    from tvbo.logs.saved import SavedFitError
    from tvbo.logs.vecchia import VecchiaLikelihood

__all__ = [
    "BlockLikelihood",
    "DenseLikelihood",
    "DriftComparison",
    "DriftFit",
    "DriftFitError",
    "DriftLog",
    "FitOptions",
    "GroupedDriftFit",
    "LikelihoodMaximizer",
    "NuisanceParameters",
    "Optimum",
    "OutlierSearch",
    "Panel",
    "PanelCandidate",
    "PanelFit",
    "PanelForecast",
    "PanelLikelihood",
    "Profile",
    "SavedFitError",
    "VecchiaLikelihood",
    "fit_drift",
    "fit_drift_by",
    "fit_panel",
    "make_likelihood",
    "outcome_unit",
    "panel_rows",
    "panel_segments",
    "profile_rate",
    "rates_at_noise",
    "steps",
]

# Imported at first use: a loop takes one of these modules, and the others a tenth of a second.
_MODULES = {
    "BlockLikelihood": "blocks",
    "DenseLikelihood": "dense",
    "DriftComparison": "drift_comparison",
    "DriftFit": "drift_result",
    "DriftFitError": "drift_fit",
    "DriftLog": "dataset",
    "FitOptions": "groups",
    "GroupedDriftFit": "groups",
    "LikelihoodMaximizer": "maximize",
    "NuisanceParameters": "parameters",
    "Optimum": "parameters",
    "OutlierSearch": "outliers",
    "Panel": "dataset",
    "PanelCandidate": "panel_evidence",
    "PanelFit": "panel_report",
    "PanelForecast": "panel_report",
    "PanelLikelihood": "panel",
    "Profile": "profile",
    "SavedFitError": "saved",
    "VecchiaLikelihood": "vecchia",
    "fit_drift": "drift_fit",
    "fit_drift_by": "groups",
    "fit_panel": "panel_fit",
    "make_likelihood": "drift_fit",
    "outcome_unit": "dataset",
    "panel_rows": "panel",
    "panel_segments": "panel",
    "profile_rate": "profile",
    "rates_at_noise": "profile",
    "steps": "profile",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
