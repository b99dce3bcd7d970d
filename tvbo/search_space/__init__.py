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
from tvbo.search_space.box import Box
from tvbo.search_space.closed_form import ClosedFormAcquisition
from tvbo.search_space.context_space import (
    ContextBounds,
    ContextList,
    ContextSpace,
)
from tvbo.search_space.factory import (
    Space,
    make_context_space,
    make_finite_space,
    make_search_space,
)
from tvbo.search_space.labels import Context, Labels, Outcome, Time, TimeScale
from tvbo.search_space.mixed import MixedSpace
from tvbo.search_space.named import Frame, Named, Table
from tvbo.search_space.parameter import Category, Number
from tvbo.search_space.parameters import Parameters
from tvbo.search_space.space_filling import SpaceFilling

__all__ = [
    "AskContext",
    "Bounds",
    "Box",
    "Category",
    "ClosedFormAcquisition",
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
    "SpaceFilling",
    "Table",
    "Time",
    "TimeScale",
    "action_context_rows",
    "as_bounds",
    "make_context_space",
    "make_finite_space",
    "make_search_space",
]
