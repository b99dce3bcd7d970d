"""Ask/tell loops."""

from tvbo.fit.contextual_model_fitter import ContextualModelFitter
from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.fit.model_fitter import ModelFitter
from tvbo.fit.refit import Refit, RefitEvery, RefitNever
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bpe import BPEDelay, EstimatedDelay
from tvbo.optimizers.constant_rules import FixedAction, LastBest
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.drift_bandits import (
    DiscountedUCB,
    DriftUCB,
    SlidingWindowUCB,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.optimizers.gp import GPOptimizer
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.outcome_model import OutcomeModel
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending, Pending
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.optimizers.random import RandomSearch
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.optimizers.trial_log import LoggedTrial, TrialError, TrialLog
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
    "LoggedTrial",
    "ModelFitter",
    "Optimizer",
    "OutcomeModel",
    "Pending",
    "Policy",
    "PosteriorState",
    "RandomSearch",
    "Recommendation",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "SlidingWindowUCB",
    "StreamingState",
    "Trial",
    "TrialError",
    "TrialLog",
    "d_ucb_discount",
    "sw_ucb_window",
]
