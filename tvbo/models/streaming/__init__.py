"""The parts of the streaming posterior."""

from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming.finite_covariance import FiniteCovariance
from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.predictions import Predictions
from tvbo.models.streaming.room import Room

__all__ = [
    "FiniteCovariance",
    "Innovations",
    "Predictions",
    "Room",
    "StreamingCost",
    "streaming_cost",
    "streaming_rows",
]
