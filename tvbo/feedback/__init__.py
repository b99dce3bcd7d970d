"""Outcomes that come late, out of order, or never."""

from tvbo.feedback.pending import Hallucinate, IgnorePending, Minimum, Pending

__all__ = ["Hallucinate", "IgnorePending", "Minimum", "Pending"]
