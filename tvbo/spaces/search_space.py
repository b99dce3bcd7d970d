"""Sets of actions or contexts, from what a caller gives; and what is known at an ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal, Self, cast, get_args

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Generator, Tensor

from tvbo.spaces.observations import (
    InputLayout,
    Observations,
    check_coordinates,
    check_finite,
    check_last_dimension,
)
from tvbo.spaces.parameters import SINGLE_PRECISION, Parameters
from tvbo.values import Frame, Named, Table, as_numbers, copies_tensors, is_frame, is_named

Array = NDArray[np.float64]

Bounds = Tensor | np.ndarray | Sequence[Sequence[float]]
"""A ``2 x d`` tensor or array, lower then upper, or a list or tuple of ``d`` pairs (lower, upper).
"""

Space = Bounds | Mapping[str, Any] | Parameters
"""Bounds, or parameters by name, as read by :meth:`tvbo.spaces.Parameters.of`."""

Outside = Literal["refuse", "clip", "extend"]
"""What to do with a row outside of a box."""

MOST_DISTANCES = 100_000
"""Number of distances that are computed at once."""

MOST_COMBINATIONS = 1_000
"""Number of combinations of integers and categories up to which they are a finite set."""


class RowSpace(ABC):
    """A set of rows of numbers: the actions that can be chosen, or the contexts to expect.

    Attributes:
        bounds: Smallest and largest value of each column, ``2 x d``.
        dim: Number of columns ``d``.
        parameters: Names and types of the parameters; None where rows are tensors.
        name: What a row is, ``"action"`` or ``"context"``.
    """

    bounds: Tensor
    dim: int
    parameters: Parameters | None = None
    name: str = "action"
    _whole: Self | None = None

    @property
    def whole(self) -> Self:
        """The set of which this one is the part that can be reached; else the set itself."""
        return self._whole or self

    @abstractmethod
    def between(self, rows: Tensor) -> Self:
        """Return the part of the set from one row to another, ``2 x d``, in each column.

        Raises:
            InputDataError: if it is empty.
        """

    @abstractmethod
    def sample(self, generator: Generator) -> Tensor:
        """Return one row, ``1 x d``, drawn uniformly."""

    @abstractmethod
    def from_unit(self, unit: Tensor) -> Tensor:
        """Return the rows, ``n x d``, of points of the unit cube, one column for each searched one.

        Uniform points are uniform rows of a box or of a product of values.
        """

    @property
    def plural(self) -> str:
        """Name of an argument with several rows."""
        return "choices" if self.name == "action" else "contexts"

    @property
    def varying(self) -> dict[str, int]:
        """Number of columns of each parameter that is not fixed, by name: several of a category."""
        if self.parameters is None:
            return {f"{self.name}_{i}": 1 for i in range(self.dim)}
        return {part.name: part.width for part in self.parameters.varying}

    @abstractmethod
    def snap(self, X: Tensor) -> Tensor:
        """Return rows, ``n x d``, without rounding to single precision.

        Raises:
            BotorchTensorDimensionError: if they have the wrong width.
            InputDataError: if a row is none of the set.
        """

    def read(self, row: Tensor | Named | None) -> Tensor:
        """Return a row of the set that a caller gives, as numbers or by name, ``1 x d``.

        Raises:
            BotorchTensorDimensionError: if there are not ``d`` numbers.
            InputDataError: if names, types or values are not as declared.
        """
        if row is None:
            raise BotorchTensorDimensionError(
                f"Expected the {self.name}, of size {self.dim}, as declared. Got none."
            )
        if not is_named(row):
            columns = as_numbers(self.name, row)
        elif self.parameters is None:
            raise InputDataError(
                f"Expected the {self.name} as a tensor, as it was declared without names. "
                f"Got {dict(row.items())!r}."
            )
        else:
            columns = self.parameters.encode(row)
        if columns.numel() != self.dim or columns.ndim > 2 or len(torch.atleast_2d(columns)) != 1:
            raise BotorchTensorDimensionError(
                f"Expected one {self.name}, 1 x {self.dim}. Got shape {tuple(columns.shape)}."
            )
        return self.snap(columns.reshape(1, self.dim))

    def read_table(self, table: Table) -> Tensor:
        """Return rows of the set that a caller gives, ``n x d``.

        Args:
            table: ``n x d``, or ``n`` where ``d`` is 1, or a table with the names of the
                parameters, or lists of values by name, of which all combinations are meant.

        Raises:
            ValueError: if it is not a table, or empty.
            InputDataError: if values by name are no lists, or a row is none of the set.
        """
        if self.parameters is not None and isinstance(table, Mapping):
            for each, values in table.items():
                if isinstance(values, tuple | str) or not isinstance(values, Iterable):
                    raise InputDataError(f"Expected a list of values for {each}. Got {values!r}.")
            named = [dict(zip(table, values, strict=True)) for values in product(*table.values())]
            table = torch.stack([self.parameters.encode(values) for values in named])
        elif self.parameters is not None and is_frame(table):
            table = self.parameters.encode_table(table)
        rows = as_numbers(self.plural, table)
        if rows.ndim == 1 and self.dim == 1:
            rows = rows.unsqueeze(-1)
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(
                f"Expected {self.plural} of shape n x {self.dim}. Got shape {tuple(rows.shape)}."
            )
        return self.snap(rows)

    def rows_of(self, table: Frame) -> list[Any]:
        """Return what each row of a table says of it, as :meth:`read` takes it.

        Raises:
            InputDataError: if there are no columns ``action_0``, ... where it has no names.
        """
        if self.parameters is None:
            names = [f"{self.name}_{i}" for i in range(self.dim)]
            missing = [name for name in names if name not in table.columns]
            if missing:
                raise InputDataError(
                    f"Expected columns {', '.join(names)}. Got none of name {missing[0]!r}."
                )
            return list(table[names].itertuples(index=False, name=None))
        known = [name for name in self.parameters.names if name in table.columns]
        return table[known].to_dict("records")


@copies_tensors("bounds")
class Box(RowSpace):
    """All actions, or contexts, between two bounds.

    Args:
        bounds: ``2 x d`` tensor or array, lower then upper, or a list of ``d`` pairs (lower,
            upper), as read by ``as_bounds``. Those of contexts may be equal.
        parameters: Names and types of the parameters; None where rows are tensors.
        name: What a row is, ``"action"`` or ``"context"``.
        outside: Whether a row outside is refused, clipped to the bounds, or taken as it is.

    Attributes:
        num_restarts: Starts of the search for a maximum.
        raw_samples: Points from which the starts are picked.

    Raises:
        BotorchTensorDimensionError: if ``bounds`` has another shape.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound not below its upper
            one, or a list could be read in both ways.
    """

    num_restarts = 4
    raw_samples = 64

    def __init__(
        self,
        bounds: Bounds,
        parameters: Parameters | None = None,
        name: str = "action",
        outside: Outside = "refuse",
    ):
        self.parameters, self.name, self.outside = parameters, name, outside
        argument = "bounds" if name == "action" else f"{name}_bounds"
        self.bounds = as_bounds(argument, bounds, constant=name == "context")
        self.dim = self.bounds.shape[-1]

    def between(self, rows: Tensor) -> Self:
        """Return the box between two rows, ``2 x d``, as far as it is inside."""
        part = copy(self)
        part.bounds, part._whole = rows.clamp(*self.bounds), self.whole
        return part

    def sample(self, generator: Generator) -> Tensor:
        """Return one row, ``1 x d``, drawn uniformly from the box."""
        return self.from_unit(torch.rand(1, self.dim, dtype=torch.float64, generator=generator))

    def from_unit(self, unit: Tensor) -> Tensor:
        """Return the rows of points of the unit cube."""
        lower, upper = self.bounds
        rows: Tensor = lower + unit * (upper - lower)
        return rows.clamp(lower, upper)

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` clamped to the bounds; raise if a row is outside by more than rounding."""
        check_last_dimension("X", X, self.dim)
        check_finite(self.name, X)
        lower, upper = bounds = self.bounds
        slack = SINGLE_PRECISION * bounds.abs().amax(dim=0)
        if self.outside == "extend":
            return X
        outside = ((lower - slack > X) | (upper + slack < X)).any(dim=-1)
        if outside.any() and self.outside == "refuse":
            raise InputDataError(
                f"Expected each {self.name} within bounds {bounds.tolist()}. "
                f"Got {X[outside][0].tolist()}."
            )
        return X.clamp(lower, upper)


@copies_tensors("bounds")
class FiniteSpace(RowSpace):
    """A finite set of actions, or of contexts.

    Args:
        choices: ``n x d``, one row for each, without duplicates.
        parameters: Names and types of the parameters; None where rows are tensors.
        name: What a row is, ``"action"`` or ``"context"``.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """

    def __init__(self, choices: Tensor, parameters: Parameters | None = None, name: str = "action"):
        self.parameters, self.name = parameters, name
        choices = as_numbers(self.plural, choices)
        if choices.ndim != 2 or 0 in choices.shape:
            raise BotorchTensorDimensionError(
                f"Expected {self.plural} of shape n x d. Got shape {tuple(choices.shape)}."
            )
        check_coordinates(self.plural, choices)
        distinct, count = torch.unique(choices, dim=0, return_counts=True)
        if len(distinct) < len(choices):
            raise InputDataError(
                f"Expected {self.plural} that differ. Got {distinct[count > 1][0].tolist()} "
                f"{int(count.max())} times."
            )
        # Not to be changed: a copy of a large set in each round would take long.
        self.rows = choices
        self.bounds = torch.stack(choices.aminmax(dim=0))
        self.dim = choices.shape[-1]
        # Rows are looked up without PyTorch, which takes longer for one.
        self._rows: Array = choices.numpy(force=True)

    @property
    def choices(self) -> Tensor:
        """The rows, ``n x d``; a copy."""
        return self.rows.clone()

    def between(self, rows: Tensor) -> Self:
        """Return the choices between two rows, ``2 x d``, to single precision."""
        slack = SINGLE_PRECISION * self.bounds.abs().amax(dim=0)
        near = ((self.rows >= rows[0] - slack) & (self.rows <= rows[1] + slack)).all(dim=-1)
        if not near.any():
            raise InputDataError(
                f"Expected a choice from {rows[0].tolist()} to {rows[1].tolist()}, within a step "
                "of the newest trial. Got none."
            )
        if near.all():
            return self
        part = type(self)(self.rows[near], self.parameters, self.name)
        part._whole = self.whole
        return part

    def sample(self, generator: Generator) -> Tensor:
        """Return one of the choices, ``1 x d``, drawn uniformly."""
        index = int(torch.randint(len(self.rows), (1,), generator=generator))
        return self.rows[index : index + 1].clone()

    def from_unit(self, unit: Tensor, among: Tensor | None = None) -> Tensor:
        """Return the choices nearest to points of the unit cube, columns scaled by their range.

        Args:
            unit: The points, ``n x d``.
            among: Mask of the choices that may be returned; None: all.
        """
        lower, upper = self.bounds
        choices = self.rows if among is None else self.rows[among]
        scaled = (choices - lower) / torch.where(upper > lower, upper - lower, 1.0)
        parts = unit.split(max(1, MOST_DISTANCES // len(scaled)))
        nearest = [
            (scaled - part.unsqueeze(1)).square().sum(dim=-1).argmin(dim=-1) for part in parts
        ]
        return choices[torch.cat(nearest)]

    def index(self, X: Tensor) -> Tensor:
        """Return the position of each row among the choices, comparing to single precision.

        Args:
            X: Rows, ``... x d``.

        Returns:
            Positions, ``...``.

        Raises:
            BotorchTensorDimensionError: if ``X`` has the wrong width.
            InputDataError: if a row is not among the choices.
        """
        check_last_dimension("X", X, self.dim)
        places = self.places(X.detach().to(torch.float64).numpy(force=True))
        return torch.from_numpy(places).to(X.device)

    def places(self, rows: Array) -> NDArray[np.int64]:
        """Return the same in NumPy, without a check of the width."""
        shape = rows.shape[:-1]
        if rows.size == self._rows.size and all(
            (rows[..., i].ravel() == self._rows[:, i]).all() for i in range(self.dim)
        ):
            # All in their order, as in a search among them.
            return np.arange(len(self._rows)).reshape(shape)
        rows = rows.reshape(-1, self.dim)
        index = np.array([self._places.get(tuple(row), -1) for row in rows.tolist()], dtype=int)
        inexact = index < 0
        if inexact.any():
            index[inexact] = self._nearest(rows[inexact])
        return index.reshape(shape)

    @cached_property
    def _places(self) -> dict[tuple[float, ...], int]:
        return {tuple(row): i for i, row in enumerate(self._rows.tolist())}

    @cached_property
    def _tree(self) -> tuple[KDTree, Array]:
        """Return the choices in a tree, columns scaled by their largest value, and the scales."""
        scale = abs(self._rows).max(axis=0)
        scale[scale == 0] = 1.0
        return KDTree(self._rows / scale), scale

    def _nearest(self, rows: Array) -> NDArray[np.int64]:
        """Return the positions of rows that were rounded to single precision."""
        check_finite("X", torch.from_numpy(rows))
        tree, scale = self._tree
        index: NDArray[np.int64] = tree.query(rows / scale, p=1)[1]
        choices = self._rows[index]
        unknown = (abs(rows - choices) > SINGLE_PRECISION * abs(choices)).any(axis=-1)
        if unknown.any():
            raise InputDataError(
                f"Expected rows that are among the {len(self._rows)} {self.plural}. "
                f"Got {rows[unknown][0].tolist()}."
            )
        return index

    def snap(self, X: Tensor) -> Tensor:
        """Return the choices that the rows of ``X`` equal; raise if a row is not among them."""
        return self.rows[self.index(X)]


@copies_tensors("bounds")
class MixedSpace(RowSpace):
    """Actions, or contexts, of floats, integers and categories.

    Args:
        parameters: The parameters; at least one is an integer or a category.
        name: What a row is, ``"action"`` or ``"context"``.

    Attributes:
        num_restarts: Starts of the search.
        raw_samples: Points from which the starts are picked.
    """

    parameters: Parameters
    num_restarts = 4
    raw_samples = 128

    def __init__(self, parameters: Parameters, name: str = "action"):
        self.parameters, self.name = parameters, name
        self.bounds = parameters.bounds
        self.dim = parameters.dim

    def between(self, rows: Tensor) -> Self:
        """Return the actions between two rows, ``2 x d``."""
        part = type(self)(self.parameters.between(rows), self.name)
        part._whole = self.whole
        return part

    def sample(self, generator: Generator, n: int = 1) -> Tensor:
        """Return actions, ``n x d``, drawn uniformly."""
        shape = n, len(self.parameters.varying)
        return self.from_unit(torch.rand(shape, dtype=torch.float64, generator=generator))

    def from_unit(self, unit: Tensor) -> Tensor:
        """Return the rows of points of the unit cube, with one column for each parameter."""
        return self.parameters.from_unit(unit)

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` without rounding to single precision; raise if a row is no action."""
        return self.parameters.snap(X)


SearchSpace = Box | FiniteSpace | MixedSpace
"""A set of actions, or of contexts."""


@copies_tensors("context")
@dataclass(frozen=True)
class AskContext:
    """What is known when an action is chosen: round, time, context, and the observations.

    Args:
        round: Number of this trial, from 1, where those attached count as well.
        t: Time of this ask, in the user's unit.
        context: ``c``-dimensional context, or None.
        layout: How rows are laid out.
        observations: The observations that the model was conditioned on.
        search_space: The actions that can be chosen; None where nothing asks for them.
        generator: Source of randomness for acquisitions that draw or search.
    """

    round: int
    t: float
    context: Tensor | None
    layout: InputLayout
    observations: Observations
    search_space: SearchSpace | None = None
    generator: Generator | None = None

    def rows(self, X: Tensor) -> Tensor:
        """Return actions ``... x d`` as rows at the present time and context."""
        return self.layout.rows(X, self.t, self.context)

    def rows_observed(self) -> Tensor:
        """Return the observed actions as rows at the present time and context, ``n x (d + c + 1)``.

        Compute the incumbent of an improvement from these rows: the best outcome of an earlier time
        or of another context is stale, but the posterior mean at its action now is not.
        """
        return self.rows(self.observations.X[..., : self.layout.num_actions])


def make_search_space(
    bounds: Space | None,
    choices: Table | None,
    name: str = "action",
    outside: Outside | None = None,
) -> SearchSpace:
    """Return a box, a mixed space or a finite set.

    Args:
        bounds: Bounds, or parameters by name. Up to 1,000 combinations of integers and categories
            are a finite set of actions. A search space stays as it is.
        choices: All rows of a finite set.
        name: What a row is, ``"action"`` or ``"context"``.
        outside: What to do with a row outside of bounds; only where these are numbers without
            names. None is ``"refuse"``.

    Raises:
        ValueError: unless exactly one was given, or if ``outside`` is another word or does not go
            with what was given.
        InputDataError: if names, types or values are not as expected.
    """
    if (bounds is None) == (choices is None):
        both = "bounds or choices" if name == "action" else "context_bounds or contexts"
        raise ValueError(f"Expected either {both}. Got {'neither' if bounds is None else 'both'}.")
    if isinstance(bounds, RowSpace) or isinstance(choices, RowSpace):
        return cast("SearchSpace", bounds if choices is None else choices)
    outside = outside or "refuse"
    has_names = bounds is None or isinstance(bounds, Mapping | Parameters)
    if outside not in get_args(Outside) or (has_names and outside != "refuse"):
        raise ValueError(
            "Expected 'refuse' for what is outside, or of bounds without names 'clip' or 'extend'. "
            f"Got {outside!r}."
        )
    if choices is not None and is_frame(choices):
        parameters = Parameters.of_table(choices)
        return FiniteSpace(parameters.encode_table(choices), parameters, name)
    given = choices if bounds is None else bounds
    if not isinstance(given, Mapping | Parameters):
        if bounds is None:
            return FiniteSpace(cast("Tensor", given), name=name)
        return Box(cast("Bounds", given), name=name, outside=outside)
    parameters = Parameters.of(given)
    if bounds is not None and parameters.is_continuous:
        return Box(parameters.bounds, parameters, name)
    if bounds is None or (name == "action" and parameters.count <= MOST_COMBINATIONS):
        return FiniteSpace(parameters.combinations(), parameters, name)
    return MixedSpace(parameters, name)


def as_bounds(name: str, bounds: Bounds, constant: bool = False) -> Tensor:
    """Return bounds as a ``2 x d`` float64 tensor, lower then upper.

    Args:
        name: Name of the argument in errors.
        bounds: A ``2 x d`` tensor or array, as BoTorch takes it, or a Python list or tuple of ``d``
            pairs (lower, upper), as SciPy, Optuna and Ax take them. A list that reads as ``2 x d``
            and not as pairs is rejected; so is a list of two pairs that can be read in both ways.
        constant: Whether a lower bound may be equal to its upper one.

    Raises:
        BotorchTensorDimensionError: if the shape is none of these.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound is above its upper
            one, or a list can be read in two ways.
    """
    is_list = isinstance(bounds, list | tuple)
    values = as_numbers(name, bounds)
    if values.ndim != 2 or values.numel() == 0 or values.shape[-1 if is_list else 0] != 2:
        raise BotorchTensorDimensionError(
            f"Expected {name} as a 2 x d tensor, or as a list of d pairs (lower, upper). "
            f"Got {bounds!r} of shape {tuple(values.shape)}."
        )
    check_coordinates(name, values)
    lower, upper = read = values.mT.contiguous() if is_list else values
    # Two pairs may be meant as a row of lower and a row of upper bounds.
    may_be_rows = is_list and len(values) == 2 and bool((values[0] < values[1]).all())
    if may_be_rows and not torch.equal(values, read):
        raise InputDataError(
            f"Expected {name} that can be read in one way only. Got the list {bounds!r}: for pairs "
            f"(lower, upper) write torch.tensor({read.tolist()}, dtype=torch.float64), for a row "
            f"of lower and a row of upper bounds torch.tensor({values.tolist()}, "
            "dtype=torch.float64)."
        )
    if not ((lower <= upper) if constant else (lower < upper)).all():
        raise InputDataError(
            f"Expected lower {name} {'not above' if constant else 'below'} upper {name}. "
            f"Got {read.tolist()}, lower then upper."
        )
    return read
