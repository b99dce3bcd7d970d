"""Which observations the next model sees: all, a block, a window."""

from tvbo.retention.policies import KeepAll, Reset, Retention, SlidingWindow, StaleCutoff

__all__ = ["KeepAll", "Reset", "Retention", "SlidingWindow", "StaleCutoff"]
