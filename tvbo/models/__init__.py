"""BoTorch models whose function drifts in time."""

from tvbo.models.drift_fit import DriftFitError, fit_drift
from tvbo.models.drift_report import DriftFit
from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming_gp import StreamingGP
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = [
    "DriftFit",
    "DriftFitError",
    "StreamingCost",
    "StreamingGP",
    "TimeVaryingGP",
    "fit_drift",
    "streaming_cost",
    "streaming_rows",
]
