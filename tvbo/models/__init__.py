"""BoTorch models over actions, contexts and time."""

# It registers how BoTorch draws sample paths of these models.
import tvbo.models.pathwise  # noqa: F401
from tvbo.models.averaged_gp import AveragedGP
from tvbo.models.contextual_gp import ContextualGP
from tvbo.models.incremental_gp import IncrementalGP
from tvbo.models.streaming_gp import StreamingGP
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = [
    "AveragedGP",
    "ContextualGP",
    "IncrementalGP",
    "StreamingGP",
    "TimeVaryingGP",
]
