"""Fitting the drift rate of a log: marginal likelihoods, their maximization, profile and report."""

from tvbo.fitting.blocks import BlockLikelihood
from tvbo.fitting.dataset import DriftLog, Panel, outcome_unit
from tvbo.fitting.dense import DenseLikelihood
from tvbo.fitting.drift_fit import DriftFitError, fit_drift, make_likelihood
from tvbo.fitting.drift_report import DriftFit
from tvbo.fitting.maximize import LikelihoodMaximizer, NuisanceParameters, Optimum
from tvbo.fitting.panel import PanelLikelihood, panel_rows, panel_segments
from tvbo.fitting.panel_evidence import PanelCandidate
from tvbo.fitting.panel_fit import fit_panel
from tvbo.fitting.panel_report import PanelFit, PanelForecast
from tvbo.fitting.profile import Profile, profile_rate, rates_at_noise, steps
from tvbo.fitting.vecchia import VecchiaLikelihood

__all__ = [
    "BlockLikelihood",
    "DenseLikelihood",
    "DriftFit",
    "DriftFitError",
    "DriftLog",
    "LikelihoodMaximizer",
    "NuisanceParameters",
    "Optimum",
    "Panel",
    "PanelCandidate",
    "PanelFit",
    "PanelForecast",
    "PanelLikelihood",
    "Profile",
    "VecchiaLikelihood",
    "fit_drift",
    "fit_panel",
    "make_likelihood",
    "outcome_unit",
    "panel_rows",
    "panel_segments",
    "profile_rate",
    "rates_at_noise",
    "steps",
]
