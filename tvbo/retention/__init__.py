"""Which observations the next model sees, and which outcomes are worth having."""

from tvbo.retention.base import Prediction, Refusal, Retention
from tvbo.retention.chain import Chain
from tvbo.retention.entropy import EntropyThreshold
from tvbo.retention.event_reset import EventReset
from tvbo.retention.policies import KeepAll, Reset, SlidingWindow, StaleCutoff, StaleErrorBound
from tvbo.retention.size_limit import SizeLimit, marginal_information

__all__ = [
    "Chain",
    "EntropyThreshold",
    "EventReset",
    "KeepAll",
    "Prediction",
    "Refusal",
    "Reset",
    "Retention",
    "SizeLimit",
    "SlidingWindow",
    "StaleCutoff",
    "StaleErrorBound",
    "marginal_information",
]
