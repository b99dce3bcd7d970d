"""Search spaces: sets of actions and of contexts, and the layout of a model's input."""

from tvbo.spaces.base import (
    AskContext,
    FiniteSpace,
    RowIndex,
    SearchSpace,
    action_context_rows,
)
from tvbo.spaces.bounds import Bounds, as_bounds
from tvbo.spaces.box import Box
from tvbo.spaces.closed_form import ClosedFormAcquisition
from tvbo.spaces.context_space import (
    ContextBounds,
    ContextList,
    ContextSpace,
)
from tvbo.spaces.factory import (
    Space,
    make_context_space,
    make_finite_space,
    make_search_space,
)
from tvbo.spaces.labels import Context, Labels, Outcome, Time, TimeScale
from tvbo.spaces.mixed import MixedSpace
from tvbo.spaces.named import Frame, Named, Table
from tvbo.spaces.observations import InputLayout
from tvbo.spaces.parameter import Category, Number
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.space_filling import SpaceFilling

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
