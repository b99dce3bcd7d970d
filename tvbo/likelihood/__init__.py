"""Log likelihoods of a drifting GP for logs of every shape, and their maximization."""

from tvbo.likelihood.blocks import BlockLikelihood
from tvbo.likelihood.choose import make_likelihood
from tvbo.likelihood.dense import DenseLikelihood
from tvbo.likelihood.log import DriftLog, outcome_unit
from tvbo.likelihood.maximize import LikelihoodMaximizer, Optimum
from tvbo.likelihood.nuisance import NuisanceParameters
from tvbo.likelihood.panel import PanelLikelihood
from tvbo.likelihood.panel_log import Panel, panel_rows, panel_stretches
from tvbo.likelihood.profile import Profile, profile_rate, rates_at_noise, steps
from tvbo.likelihood.vecchia import VecchiaLikelihood

__all__ = [
    "BlockLikelihood",
    "DenseLikelihood",
    "DriftLog",
    "LikelihoodMaximizer",
    "NuisanceParameters",
    "Optimum",
    "Panel",
    "PanelLikelihood",
    "Profile",
    "VecchiaLikelihood",
    "make_likelihood",
    "outcome_unit",
    "panel_rows",
    "panel_stretches",
    "profile_rate",
    "rates_at_noise",
    "steps",
]
