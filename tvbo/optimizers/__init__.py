"""Ask/tell loops."""

from tvbo.fit.contextual_model_fitter import ContextualModelFitter
from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.fit.model_fitter import ModelFitter
from tvbo.fit.refit import Refit, RefitEvery, RefitNever
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bpe import BPEDelay, EstimatedDelay
from tvbo.optimizers.builder import OutcomeOptions
from tvbo.optimizers.constant_rules import FixedAction, LastBest
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.drift_bandits import (
    DiscountedUCB,
    DriftUCB,
    SlidingWindowUCB,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending, Pending
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.refusals import TrialError
from tvbo.optimizers.rejection_log import RejectedTrial, RejectionLog
from tvbo.optimizers.several_outcomes import MultiOutcomeOptimizer
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.optimizers.trial_log import LostTrial, TrialLog
from tvbo.optimizers.units import UnitOptions
from tvbo.storage.recorded import Event, EventSink
from tvbo.trial import Trial

__all__ = [
    "BPEDelay",
    "ConstantLiar",
    "ContextualModelFitter",
    "DenseState",
    "DiscountedUCB",
    "DriftEstimate",
    "DriftUCB",
    "EstimatedDelay",
    "Event",
    "EventSink",
    "FixedAction",
    "GPOptimizer",
    "Hallucinate",
    "IgnorePending",
    "IncrementalState",
    "LastBest",
    "LostTrial",
    "ModelFitter",
    "MultiOutcomeOptimizer",
    "Optimizer",
    "OutcomeOptions",
    "Pending",
    "Policy",
    "PosteriorState",
    "RandomSearch",
    "Recommendation",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "RejectedTrial",
    "RejectionLog",
    "SlidingWindowUCB",
    "StreamingState",
    "Trial",
    "TrialError",
    "TrialLog",
    "UnitOptions",
    "d_ucb_discount",
    "sw_ucb_window",
]
