"""The parts of the streaming posterior."""

from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming.draws import Draws
from tvbo.models.streaming.finite_covariance import FiniteCovariance
from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.predictions import Predictions
from tvbo.models.streaming.revision import Revisions
from tvbo.models.streaming.room import Room

__all__ = [
    "Draws",
    "FiniteCovariance",
    "Innovations",
    "Predictions",
    "Revisions",
    "Room",
    "StreamingCost",
    "streaming_cost",
    "streaming_rows",
]
