"""BoTorch models over actions, contexts and time."""

from tvbo.models.averaged_gp import AveragedGP, HyperparameterSets
from tvbo.models.contextual_gp import ContextualGP
from tvbo.models.incremental_gp import IncrementalGP
from tvbo.models.kernel_parts import KernelParts, explained_variance, part_posterior
from tvbo.models.pathwise import draw_path, has_paths
from tvbo.models.streaming.cost import StreamingCost, streaming_cost, streaming_rows
from tvbo.models.streaming_gp import StreamingGP
from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = [
    "AveragedGP",
    "ContextualGP",
    "HyperparameterSets",
    "IncrementalGP",
    "KernelParts",
    "StreamingCost",
    "StreamingGP",
    "TimeVaryingGP",
    "draw_path",
    "explained_variance",
    "has_paths",
    "part_posterior",
    "streaming_cost",
    "streaming_rows",
]
