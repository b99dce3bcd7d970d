"""Ask/tell loops."""

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bkb import BKB
from tvbo.optimizers.bpe import BPEDelay, EstimatedDelay
from tvbo.optimizers.closed import ClosedTrials, LostTrial
from tvbo.optimizers.contextual_surrogate import ContextualSurrogate
from tvbo.optimizers.events import Event, Recorder
from tvbo.optimizers.finding import TrialError
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_surrogate import IncrementalSurrogate
from tvbo.optimizers.nystrom_surrogate import NystromSurrogate
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending, Pending
from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.refit import Refit, RefitEvery, RefitNever
from tvbo.optimizers.refusals import Refusals, RefusedTrial
from tvbo.optimizers.rexp3 import RExp3, rexp3_block_length
from tvbo.optimizers.separate import SeparateContexts
from tvbo.optimizers.streaming_surrogate import StreamingSurrogate
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.optimizers.surrogate_protocol import Surrogate
from tvbo.optimizers.trial import Trial

__all__ = [
    "BKB",
    "BPEDelay",
    "ClosedTrials",
    "ConstantLiar",
    "ContextualSurrogate",
    "EstimatedDelay",
    "Event",
    "GPOptimizer",
    "GPSurrogate",
    "Hallucinate",
    "IgnorePending",
    "IncrementalSurrogate",
    "LostTrial",
    "NystromSurrogate",
    "Optimizer",
    "Pending",
    "Policy",
    "RExp3",
    "RandomSearch",
    "Recommendation",
    "Recorder",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "Refusals",
    "RefusedTrial",
    "SeparateContexts",
    "StreamingSurrogate",
    "Surrogate",
    "Trial",
    "TrialError",
    "rexp3_block_length",
]
