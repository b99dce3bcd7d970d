"""Search spaces: sets of actions and of contexts, and the layout of a model's input."""

from tvbo.observations import InputLayout
from tvbo.search_space.base import (
    AskContext,
    FiniteSpace,
    RowIndex,
    SearchSpace,
    action_context_rows,
)
from tvbo.search_space.bounds import Bounds, as_bounds
from tvbo.search_space.box import Box, make_search_space
from tvbo.search_space.context_space import (
    ContextBounds,
    ContextList,
    ContextSpace,
    make_context_space,
)
from tvbo.search_space.space_filling import SpaceFilling

__all__ = [
    "AskContext",
    "Bounds",
    "Box",
    "ContextBounds",
    "ContextList",
    "ContextSpace",
    "FiniteSpace",
    "InputLayout",
    "RowIndex",
    "SearchSpace",
    "SpaceFilling",
    "action_context_rows",
    "as_bounds",
    "make_context_space",
    "make_search_space",
]
