"""Sets of actions: a box, a finite set, a mixed space, from what a caller gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.spaces.bounds import Bounds, as_bounds
from tvbo.spaces.observations import check_finite, check_last_dimension
from tvbo.spaces.parameter import SINGLE_PRECISION
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.row_index import RowIndex
from tvbo.values import Table, copies_tensors, is_frame

Space = Bounds | Mapping[str, Any] | Parameters
"""Bounds, or parameters by name, as read by :meth:`tvbo.spaces.Parameters.of`."""

MOST_COMBINATIONS = 1_000
"""Number of combinations of integers and categories up to which they are a finite set."""


@copies_tensors("bounds")
class Box:
    """All actions between two bounds.

    Args:
        bounds: ``2 x d`` tensor or array, lower then upper, or a list of ``d`` pairs (lower,
            upper), as read by ``as_bounds``.
        num_restarts: Starts of ``optimize_acqf``.
        raw_samples: Points from which the starts are picked.
        parameters: Names and types of the parameters; None where actions are tensors.

    Raises:
        BotorchTensorDimensionError: if ``bounds`` has another shape.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound not below its upper
            one, or a list could be read in both ways.
    """

    parameters: Parameters | None = None

    def __init__(
        self,
        bounds: Bounds,
        num_restarts: int = 4,
        raw_samples: int = 64,
        parameters: Parameters | None = None,
    ):
        self.parameters = parameters
        self.bounds = as_bounds("bounds", bounds)
        self.dim = self.bounds.shape[-1]
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples

    def sample(self, generator: Generator) -> Tensor:
        """Return one action, ``1 x d``, drawn uniformly from the box."""
        unit = torch.rand(1, self.dim, dtype=torch.float64, generator=generator)
        return self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` clamped to the bounds; raise if a row is outside by more than rounding."""
        _check_action(X, self.dim)
        slack = SINGLE_PRECISION * self.bounds.abs().amax(dim=0)
        outside = ((self.bounds[0] - slack > X) | (self.bounds[1] + slack < X)).any(dim=-1)
        if outside.any():
            raise InputDataError(
                f"Expected actions within bounds {self.bounds.tolist()}. "
                f"Got {X[outside][0].tolist()}."
            )
        return X.clamp(*self.bounds)


@copies_tensors("choices", "bounds")
class FiniteSpace:
    """A finite set of actions.

    Args:
        choices: ``n x d``, one row per action, without duplicates.
        parameters: Names and types of the parameters; None where actions are tensors.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """

    choices: Tensor
    parameters: Parameters | None = None

    def __init__(self, choices: Tensor, parameters: Parameters | None = None):
        self.row_index = RowIndex(choices)
        # The tensor of the index itself, since a set may be large.
        vars(self)["choices"] = self.row_index.choices
        self.bounds = torch.stack(self.row_index.choices.aminmax(dim=0))
        self.dim = self.row_index.dim
        self.parameters = parameters

    def sample(self, generator: Generator) -> Tensor:
        """Return one of the choices, ``1 x d``, drawn uniformly."""
        index = int(torch.randint(len(self.row_index), (1,), generator=generator))
        return self.row_index.choices[index : index + 1].clone()

    def index(self, X: Tensor) -> Tensor:
        """Return the position of each row of ``X``, ``n x d``, among the choices.

        Rows are compared to single precision.

        Raises:
            InputDataError: if a row is not among the choices.
        """
        _check_action(X, self.dim)
        return self.row_index.index(X)

    def snap(self, X: Tensor) -> Tensor:
        """Return the choices that the rows of ``X`` equal; raise if a row is not among them."""
        return self.row_index.choices[self.index(X)]


@copies_tensors("bounds")
class MixedSpace:
    """Actions of floats, integers and categories.

    Args:
        parameters: The parameters; at least one is an integer or a category.
        num_restarts: Starts of the search.
        raw_samples: Points from which the starts are picked.
    """

    def __init__(self, parameters: Parameters, num_restarts: int = 4, raw_samples: int = 128):
        self.parameters = parameters
        self.bounds = parameters.bounds
        self.dim = parameters.dim
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples

    def sample(self, generator: Generator, n: int = 1) -> Tensor:
        """Return actions, ``n x d``, drawn uniformly."""
        shape = n, len(self.parameters.varying)
        return self.parameters.from_unit(
            torch.rand(shape, dtype=torch.float64, generator=generator)
        )

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` without rounding to single precision; raise if a row is no action."""
        _check_action(X, self.dim)
        return self.parameters.snap(X)


SearchSpace = Box | FiniteSpace | MixedSpace
"""A set of actions."""


def make_search_space(bounds: Space | None, choices: Table | None) -> SearchSpace:
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
    rows, parameters = rows_of_table(choices)
    return FiniteSpace(rows, parameters=parameters)


def rows_of_table(table: Table) -> tuple[Tensor, Parameters | None]:
    """Return rows of numbers, and what their columns stand for; None where nobody said."""
    if isinstance(table, Mapping | Parameters):
        parameters = Parameters.of(table)
        return parameters.combinations(), parameters
    if is_frame(table):
        parameters = Parameters.of_table(table)
        return parameters.encode_table(table), parameters
    # Checked where the set is made, with its name.
    return cast("Tensor", table), None


def _check_action(X: Tensor, dim: int) -> None:
    """Raise unless ``X`` is a finite ``n x d`` tensor."""
    if X.ndim != 2:
        raise BotorchTensorDimensionError(
            f"Expected X of shape n x {dim}. Got X.shape={tuple(X.shape)}."
        )
    check_last_dimension("X", X, dim)
    check_finite("X", X)
