"""Parts of :class:`tvbo.models.StreamingGP`."""

from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming.draws import Draws
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.finite_prior import DecayPrior, FiniteCovariance
from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.posterior import Predictions
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.revision import Revisions
from tvbo.models.streaming.updatable import UpdatablePosterior

__all__ = [
    "DecayPrior",
    "Draws",
    "EvictionPolicy",
    "FiniteCovariance",
    "Innovations",
    "MarkovPrior",
    "Predictions",
    "Revisions",
    "StreamingCost",
    "UpdatablePosterior",
    "streaming_cost",
    "streaming_rows",
]
