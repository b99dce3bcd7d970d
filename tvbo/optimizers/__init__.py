"""Ask/tell loops."""

from tvbo.fit.model_fitter import Refit, RefitEvery, RefitNever
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.gp import GPOptimizer
from tvbo.optimizers.outcome_model import OutcomeModel
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending, Pending
from tvbo.optimizers.random import RandomSearch
from tvbo.recommendation import Policy, Recommendation
from tvbo.trial import Trial, TrialError

__all__ = [
    "BPEDelay",
    "ConstantLiar",
    "GPOptimizer",
    "Hallucinate",
    "IgnorePending",
    "Optimizer",
    "OutcomeModel",
    "Pending",
    "Policy",
    "RandomSearch",
    "Recommendation",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "Trial",
    "TrialError",
]
