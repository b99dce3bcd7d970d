"""Fitting the drift rate of a log: marginal likelihoods, their maximization, profile and report."""

from tvbo.fitting.blocks import BlockLikelihood
from tvbo.fitting.dataset import DriftLog, Panel, outcome_unit
from tvbo.fitting.dense import DenseLikelihood
from tvbo.fitting.drift_comparison import DriftComparison
from tvbo.fitting.drift_fit import DriftFitError, fit_drift, make_likelihood
from tvbo.fitting.drift_result import DriftFit
from tvbo.fitting.groups import FitOptions, GroupedDriftFit, fit_drift_by
from tvbo.fitting.maximize import LikelihoodMaximizer
from tvbo.fitting.outliers import OutlierSearch
from tvbo.fitting.panel import PanelLikelihood, panel_rows, panel_segments
from tvbo.fitting.panel_evidence import PanelCandidate
from tvbo.fitting.panel_fit import fit_panel
from tvbo.fitting.panel_report import PanelFit, PanelForecast
from tvbo.fitting.parameters import NuisanceParameters, Optimum
from tvbo.fitting.profile import Profile, profile_rate, rates_at_noise, steps
from tvbo.fitting.saved import SavedFitError
from tvbo.fitting.vecchia import VecchiaLikelihood

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
