"""Retention policies: which observations stay in the model, which outcomes are admitted to it."""

from tvbo.retention.base import (
    Admission,
    KeepAll,
    Prediction,
    Rejection,
    Reset,
    Retention,
    SlidingWindow,
    StaleCutoff,
)
from tvbo.retention.entropy import EntropyThreshold
from tvbo.retention.event_reset import EventReset
from tvbo.retention.size_limit import SizeLimit

__all__ = [
    "Admission",
    "EntropyThreshold",
    "EventReset",
    "KeepAll",
    "Prediction",
    "Rejection",
    "Reset",
    "Retention",
    "SizeLimit",
    "SlidingWindow",
    "StaleCutoff",
]
