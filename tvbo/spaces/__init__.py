"""Search spaces: sets of actions and of contexts, and the layout of a model's input."""

from tvbo.spaces.ask_context import AskContext
from tvbo.spaces.context_space import ContextBounds, ContextList
from tvbo.spaces.observations import InputLayout
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.search_space import Box, FiniteSpace, MixedSpace

__all__ = [
    "AskContext",
    "Box",
    "ContextBounds",
    "ContextList",
    "FiniteSpace",
    "InputLayout",
    "MixedSpace",
    "Parameters",
]
