"""Search spaces: sets of actions and of contexts, and the layout of a model's input."""

from tvbo.spaces.ask_context import AskContext
from tvbo.spaces.bounds import Bounds, as_bounds
from tvbo.spaces.context_space import (
    ContextBounds,
    ContextList,
    ContextSpace,
    make_context_space,
)
from tvbo.spaces.labels import Context, Labels, Outcome, Time, TimeScale
from tvbo.spaces.named import Frame, Named, Table
from tvbo.spaces.observations import InputLayout
from tvbo.spaces.parameter import Category, Number
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.row_index import RowIndex, action_context_rows
from tvbo.spaces.search_space import (
    Box,
    FiniteSpace,
    MixedSpace,
    SearchSpace,
    Space,
    make_finite_space,
    make_search_space,
)

__all__ = [
    "AskContext",
    "Bounds",
    "Box",
    "Category",
    "Context",
    "ContextBounds",
    "ContextList",
    "ContextSpace",
    "FiniteSpace",
    "Frame",
    "InputLayout",
    "Labels",
    "MixedSpace",
    "Named",
    "Number",
    "Outcome",
    "Parameters",
    "RowIndex",
    "SearchSpace",
    "Space",
    "Table",
    "Time",
    "TimeScale",
    "action_context_rows",
    "as_bounds",
    "make_context_space",
    "make_finite_space",
    "make_search_space",
]
