"""BoTorch models over actions, contexts and time."""

# It registers how BoTorch draws sample paths of these models.
import tvbo.models.pathwise  # noqa: F401
from tvbo.models.contextual_gp import ContextualGP
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.streaming_gp import StreamingGP
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = ["ContextualGP", "EnsembleGP", "StreamingGP", "TimeVaryingGP"]
