"""Ask/tell loops."""

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bkb import BKB
from tvbo.optimizers.bpe import BPEDelay, EstimatedDelay
from tvbo.optimizers.contextual_surrogate import ContextualSurrogate
from tvbo.optimizers.events import Event, Recorder
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_surrogate import IncrementalSurrogate
from tvbo.optimizers.nystrom_surrogate import NystromSurrogate
from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.refit import Refit, RefitEvery, RefitNever
from tvbo.optimizers.rejection_log import RejectedTrial, RejectionLog
from tvbo.optimizers.rexp3 import RExp3, rexp3_block_length
from tvbo.optimizers.separate import SeparateContexts
from tvbo.optimizers.streaming_surrogate import StreamingSurrogate
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.optimizers.surrogate_protocol import Surrogate
from tvbo.optimizers.trial import Trial
from tvbo.optimizers.trial_log import LostTrial, TrialLog
from tvbo.optimizers.trial_lookup import TrialError

__all__ = [
    "BKB",
    "BPEDelay",
    "ContextualSurrogate",
    "EstimatedDelay",
    "Event",
    "GPOptimizer",
    "GPSurrogate",
    "IncrementalSurrogate",
    "LostTrial",
    "NystromSurrogate",
    "Optimizer",
    "Policy",
    "RExp3",
    "RandomSearch",
    "Recommendation",
    "Recorder",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "RejectedTrial",
    "RejectionLog",
    "SeparateContexts",
    "StreamingSurrogate",
    "Surrogate",
    "Trial",
    "TrialError",
    "TrialLog",
    "rexp3_block_length",
]
