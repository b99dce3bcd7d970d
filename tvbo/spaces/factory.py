"""Search spaces and declared contexts, from what a caller gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from tvbo.spaces.base import FiniteSpace
from tvbo.spaces.bounds import Bounds
from tvbo.spaces.box import Box
from tvbo.spaces.context_space import ContextBounds, ContextList, ContextSpace
from tvbo.spaces.mixed import MixedSpace
from tvbo.spaces.named import Table, is_frame
from tvbo.spaces.parameters import Parameters

Space = Bounds | Mapping[str, Any] | Parameters
"""Bounds, or parameters by name, as read by :meth:`tvbo.spaces.Parameters.of`."""

MOST_COMBINATIONS = 1_000
"""Number of combinations of integers and categories up to which they are a finite set."""


def make_search_space(
    bounds: Space | None, choices: Table | None
) -> Box | MixedSpace | FiniteSpace:
    """Return a box, a mixed space or a finite set of actions.

    Args:
        bounds: Bounds, or parameters by name. Up to 1,000 combinations of integers and categories
            are a finite set.
        choices: All actions.

    Raises:
        ValueError: unless exactly one was given.
        InputDataError: if names, types or values are not as expected.
    """
    if choices is not None and bounds is None:
        return make_finite_space(choices)
    if bounds is None or choices is not None:
        raise ValueError(
            "Expected either bounds (2 x d) or choices (n x d). "
            f"Got {'neither' if bounds is None else 'both'}."
        )
    if not isinstance(bounds, Mapping | Parameters):
        return Box(bounds)
    parameters = Parameters.of(bounds)
    if parameters.is_continuous:
        return Box(parameters.bounds, parameters=parameters)
    if parameters.count <= MOST_COMBINATIONS:
        return FiniteSpace(parameters.combinations(), parameters=parameters)
    return MixedSpace(parameters)


def make_finite_space(choices: Table) -> FiniteSpace:
    """Return a finite set of actions.

    Raises:
        BotorchTensorDimensionError: if ``choices`` are neither rows nor come by name.
        InputDataError: if names, types or values are not as expected, or there are duplicates.
    """
    rows, parameters = _rows(choices)
    return FiniteSpace(rows, parameters=parameters)


def make_context_space(context_bounds: Space | None, contexts: Table | None) -> ContextSpace:
    """Return context bounds or a context list, whichever of the two was given.

    Raises:
        ValueError: unless exactly one was given.
        InputDataError: if names, types or values are not as expected.
    """
    if contexts is not None and context_bounds is None:
        return ContextList(*_rows(contexts))
    if context_bounds is None or contexts is not None:
        raise ValueError(
            "Expected either context_bounds (2 x c) or contexts (m x c). "
            f"Got {'neither' if contexts is None else 'both'}."
        )
    if not isinstance(context_bounds, Mapping | Parameters):
        return ContextBounds(context_bounds)
    parameters = Parameters.of(context_bounds)
    return ContextBounds(parameters.bounds, parameters)


def _rows(table: Table) -> tuple[Tensor, Parameters | None]:
    """Return rows of numbers, and what their columns stand for; None where nobody said."""
    if isinstance(table, Mapping | Parameters):
        parameters = Parameters.of(table)
        return parameters.combinations(), parameters
    if is_frame(table):
        parameters = Parameters.of_table(table)
        return parameters.encode_table(table), parameters
    # Checked where the set is made, with its name.
    return cast("Tensor", table), None
