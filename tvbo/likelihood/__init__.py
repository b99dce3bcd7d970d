"""Exact log likelihoods of a drifting GP, and their maximization."""

from tvbo.likelihood.dense import DenseLikelihood
from tvbo.likelihood.log import DriftLog, Panel, panel_rows
from tvbo.likelihood.maximize import LikelihoodMaximizer, Optimum
from tvbo.likelihood.panel import PanelLikelihood
from tvbo.likelihood.profile import Profile, profile_rate

__all__ = [
    "DenseLikelihood",
    "DriftLog",
    "LikelihoodMaximizer",
    "Optimum",
    "Panel",
    "PanelLikelihood",
    "Profile",
    "panel_rows",
    "profile_rate",
]
