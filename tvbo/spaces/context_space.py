"""Declared contexts, and the check that a context is one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.spaces.bounds import Bounds, as_bounds
from tvbo.spaces.observations import check_finite
from tvbo.spaces.parameter import SINGLE_PRECISION
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.row_index import RowIndex
from tvbo.spaces.search_space import Space, rows_of_table
from tvbo.values import Table, as_numbers, copies_tensors, is_frame


@copies_tensors("bounds")
class ContextBounds:
    """All contexts between two bounds.

    Args:
        context_bounds: ``2 x c`` tensor or array, lower then upper, or a list of ``c`` pairs
            (lower, upper), as read by ``as_bounds``; columns may be
            constant.
        parameters: Names and types of the parameters; None where contexts are tensors.

    Raises:
        BotorchTensorDimensionError: if ``context_bounds`` has another shape.
        InputDataError: if a bound is not finite or beyond 1e100, a lower one above its upper one,
            or a list could be read in both ways.
    """

    parameters: Parameters | None = None

    def __init__(self, context_bounds: Bounds, parameters: Parameters | None = None):
        self.parameters = parameters
        self.bounds = as_bounds("context_bounds", context_bounds, width="c", constant=True)
        self.dim = self.bounds.shape[-1]

    def snap(self, context: Tensor | None) -> Tensor:
        """Return ``context`` clamped to the bounds; raise if outside by more than rounding."""
        context = _check_context(context, self.dim)
        if self.parameters is not None:
            return self.parameters.snap(context.unsqueeze(0)).squeeze(0)
        slack = SINGLE_PRECISION * self.bounds.abs().amax(dim=0)
        if ((self.bounds[0] - slack > context) | (self.bounds[1] + slack < context)).any():
            raise InputDataError(
                f"Expected a context within context_bounds {self.bounds.tolist()}. "
                f"Got {context.tolist()}."
            )
        return context.clamp(*self.bounds)


@copies_tensors("contexts", "bounds")
class ContextList:
    """A finite list of contexts.

    Args:
        contexts: ``m x c``, without duplicates.
        parameters: Names and types of the parameters; None where contexts are tensors.

    Raises:
        BotorchTensorDimensionError: if it is not ``m x c``.
        InputDataError: if an entry is not finite, or the contexts contain duplicates.
    """

    parameters: Parameters | None = None

    def __init__(self, contexts: Tensor, parameters: Parameters | None = None):
        self.parameters = parameters
        self.row_index = RowIndex(contexts, "contexts")
        self.contexts = self.row_index.choices
        self.bounds = torch.stack(self.contexts.aminmax(dim=0))
        self.dim = self.row_index.dim

    def index(self, context: Tensor | None) -> int:
        """Return the position of ``context`` in the list; raise if it is not in the list."""
        return int(self.row_index.index(_check_context(context, self.dim)))

    def snap(self, context: Tensor | None) -> Tensor:
        """Return the context of the list that ``context`` equals; raise if there is none."""
        return self.row_index.choices[self.index(context)].clone()


ContextSpace = ContextBounds | ContextList
"""A declared set of contexts."""


def make_context_space(context_bounds: Space | None, contexts: Table | None) -> ContextSpace:
    """Return context bounds or a context list, whichever of the two was given.

    Raises:
        ValueError: unless exactly one was given.
        InputDataError: if names, types or values are not as expected.
    """
    if contexts is not None and context_bounds is None:
        return ContextList(*rows_of_table(contexts))
    if context_bounds is None or contexts is not None:
        raise ValueError(
            "Expected either context_bounds (2 x c) or contexts (m x c). "
            f"Got {'neither' if contexts is None else 'both'}."
        )
    if not isinstance(context_bounds, Mapping | Parameters):
        return ContextBounds(context_bounds)
    parameters = Parameters.of(context_bounds)
    return ContextBounds(parameters.bounds, parameters)


def table_rows(
    table: Table, parameters: Parameters | None, dim: int, name: str, shape: str
) -> Tensor:
    """Return a table of actions or contexts as rows, ``n x d``, without checking their range.

    Args:
        table: ``n x d``, or ``n`` where ``d`` is 1, or a table with the names of the parameters, or
            lists of values by name, of which all combinations are meant; no ranges.
        parameters: What the columns stand for; None where they have no names.
        dim: Number of columns ``d``.
        name: What the rows are, for errors.
        shape: Their shape in letters, for errors.

    Raises:
        ValueError: if it is not a table, or empty.
        InputDataError: if values by name are no lists, or a value is no number.
    """
    if parameters is not None and isinstance(table, Mapping):
        for each, values in table.items():
            if isinstance(values, tuple | str) or not isinstance(values, Iterable):
                raise InputDataError(f"Expected a list of values for {each}. Got {values!r}.")
        combinations = product(*table.values())
        table = torch.stack(
            [parameters.encode(dict(zip(table, each, strict=True))) for each in combinations]
        )
    elif parameters is not None and is_frame(table):
        table = parameters.encode_table(table)
    rows = as_numbers(name, table)
    if rows.ndim == 1 and dim == 1:
        rows = rows.unsqueeze(-1)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"Expected {name} of shape {shape}. Got {name}.shape={tuple(rows.shape)}.")
    return rows


def context_table(declared: ContextSpace | None, contexts: Table | None) -> Tensor:
    """Return a table of contexts, ``m x c``, without checking that they were declared.

    Args:
        declared: The declared contexts.
        contexts: As of :func:`table_rows`; None for all of a declared list.

    Raises:
        ValueError: if ``contexts`` is None without a declared list, or an empty table.
    """
    if contexts is None:
        if not isinstance(declared, ContextList):
            raise ValueError(
                "Expected contexts (m x c): only a declared list of them can be left out. Got none."
            )
        contexts = declared.contexts
    named, dim = (None, 0) if declared is None else (declared.parameters, declared.dim)
    return table_rows(contexts, named, dim, "contexts", "m x c")


def _check_context(context: Tensor | None, dim: int) -> Tensor:
    if context is None:
        raise BotorchTensorDimensionError(
            f"Expected a context of size {dim}, as declared: what was seen without one cannot "
            "be compared. Got none."
        )
    context = as_numbers("context", context)
    if context.shape == (1, dim):
        context = context.squeeze(0)
    if context.shape != (dim,) and not (dim == 1 and context.ndim == 0):
        raise BotorchTensorDimensionError(
            f"Expected a context of size {dim}. Got context.shape={tuple(context.shape)}."
        )
    check_finite("context", context)
    return context.reshape(dim)
