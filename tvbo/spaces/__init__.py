"""Search spaces: sets of actions and of contexts, and the layout of a model's input."""

from tvbo.spaces.observations import InputLayout
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.search_space import AskContext, Box, FiniteSpace, MixedSpace

__all__ = ["AskContext", "Box", "FiniteSpace", "InputLayout", "MixedSpace", "Parameters"]
