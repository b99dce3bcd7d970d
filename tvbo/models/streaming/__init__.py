"""Parts of :class:`tvbo.models.StreamingGP`."""

from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming.draws import Draws
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.innovations import FiniteCovariance, Innovations
from tvbo.models.streaming.posterior import StreamingPosterior
from tvbo.models.streaming.revision import Revisions

__all__ = [
    "Draws",
    "EvictionPolicy",
    "FiniteCovariance",
    "Innovations",
    "Revisions",
    "StreamingCost",
    "StreamingPosterior",
    "streaming_cost",
    "streaming_rows",
]
