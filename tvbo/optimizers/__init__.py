"""Ask/tell loops."""

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bkb import BKB
from tvbo.optimizers.bpe import BPEDelay, EstimatedDelay
from tvbo.optimizers.closed import ClosedTrials, LostTrial
from tvbo.optimizers.contextual_surrogate import ContextualSurrogate
from tvbo.optimizers.events import Event, EventSink
from tvbo.optimizers.finding import TrialError
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_surrogate import IncrementalSurrogate
from tvbo.optimizers.nystrom_surrogate import NystromSurrogate
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
    "ContextualSurrogate",
    "EstimatedDelay",
    "Event",
    "EventSink",
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
