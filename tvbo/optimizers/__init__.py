"""Ask/tell loops."""

from tvbo.optimizers.base import Optimizer, TrialError
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.refit import Refit, RefitEvery, RefitNever
from tvbo.optimizers.rexp3 import RExp3, rexp3_block_length
from tvbo.optimizers.streaming_surrogate import StreamingSurrogate
from tvbo.optimizers.surrogate import GPSurrogate, Surrogate
from tvbo.optimizers.trial import Trial

__all__ = [
    "GPOptimizer",
    "GPSurrogate",
    "Optimizer",
    "RExp3",
    "RandomSearch",
    "Refit",
    "RefitEvery",
    "RefitNever",
    "StreamingSurrogate",
    "Surrogate",
    "Trial",
    "TrialError",
    "rexp3_block_length",
]
