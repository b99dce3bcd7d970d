"""Named, typed parameters, and the columns of a tensor that stand for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, product
from numbers import Integral
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.spaces.observations import check_coordinates, check_last_dimension
from tvbo.spaces.parameter import (
    SINGLE_PRECISION,
    Category,
    Number,
    Value,
    plain_value,
)
from tvbo.values import Frame, Named, as_numbers, check_names


@dataclass(frozen=True)
class Parameters:
    """Named parameters, and the columns of a tensor that stand for their values.

    Args:
        parts: The parameters in the order of their columns.
    """

    parts: tuple[Number | Category, ...]

    @classmethod
    def of(cls, space: Mapping[str, Any] | Parameters) -> Parameters:
        """Read parameters from a ConfigSpace, or from what one is made of.

        Args:
            space: A ``ConfigSpace.ConfigurationSpace``; or a dict by name: ``(lower, upper)``, of
                whole numbers for an integer and of floats for a float; a list of values for a
                category without an order; a single value for one that is fixed; or
                ``ConfigSpace.Float``, ``Integer`` or ``Categorical``, which may be on a logarithmic
                scale, or have an order.

        Raises:
            InputDataError: if it is not such a space, a parameter has a distribution other than
                the uniform one, there are conditions or forbidden clauses, or nothing varies.
        """
        if isinstance(space, Parameters):
            return space
        import ConfigSpace

        ranges: dict[Any, Number] = {}
        try:
            made: Any = space
            if not isinstance(space, ConfigSpace.ConfigurationSpace):
                # ConfigSpace rounds bounds to 13 decimal places.
                ranges = {k: _range(k, v) for k, v in space.items() if isinstance(v, tuple)}
                made = ConfigSpace.ConfigurationSpace(
                    {k: v for k, v in space.items() if not isinstance(v, tuple)}
                )
        except (TypeError, ValueError) as error:
            raise InputDataError(
                "Expected parameters by name, such as {'rate': (0.0, 1.0), 'kind': ['a', 'b']}. "
                f"Got {space!r}: {error}"
            ) from error
        if len(made.conditions) or len(made.forbidden_clauses):
            raise InputDataError(
                "Expected parameters without conditions or forbidden clauses. Got "
                f"{[str(each) for each in (*made.conditions, *made.forbidden_clauses)]}."
            )
        for name in space:
            if name not in ranges and name not in made:
                raise InputDataError(
                    f"Expected a parameter of the name under which it stands, {name!r}. "
                    f"Got {space[name].name!r}."
                )
        # ConfigSpace sorts by name; a caller's dict has an order of its own.
        parameters = cls(tuple(ranges.get(name) or _part_of(made[name]) for name in space))
        if parameters.dim == 0:
            raise InputDataError(f"Expected a parameter that can vary. Got {space!r}.")
        return parameters

    @classmethod
    def of_table(cls, table: Frame) -> Parameters:
        """Read parameters from the columns of a table: numbers, and categories of all else.

        Those of an ordered categorical of pandas have an order.

        Raises:
            InputDataError: if there are no rows, names are not distinct texts, or nothing varies.
        """
        names = list(table.columns)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InputDataError(f"Expected a table with distinct names of columns. Got {names}.")
        if len(table.index) == 0:
            raise InputDataError("Expected a table with rows. Got an empty one.")
        parts: list[Number | Category] = []
        for name in names:
            ordered = getattr(table[name].dtype, "ordered", False)
            if ordered:
                levels = tuple(plain_value(each) for each in table[name].dtype.categories)
                parts.append(Category(name, levels, is_ordered=True))
                continue
            values = [plain_value(value) for value in table[name]]
            numbers = [value for value in values if not isinstance(value, str | bool)]
            if len(numbers) == len(values):
                whole = all(isinstance(value, int) for value in numbers)
                parts.append(Number(name, min(numbers), max(numbers), whole))
            else:
                parts.append(Category(name, tuple(dict.fromkeys(values))))
        parameters = cls(tuple(parts))
        if parameters.dim == 0:
            raise InputDataError(f"Expected a column that can vary. Got {names}.")
        return parameters

    def __str__(self) -> str:
        return "; ".join(map(str, self.parts))

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [part.name for part in self.parts]

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, ``d``."""
        return [name for part in self.parts for name in part.column_names]

    @property
    def dim(self) -> int:
        """Number of columns ``d``."""
        return sum(part.width for part in self.parts)

    @property
    def bounds(self) -> Tensor:
        """Smallest and largest value of each column, ``2 x d``."""
        return torch.cat([part.bounds for part in self.parts], dim=-1)

    @property
    def is_number(self) -> Tensor:
        """Mask of the columns of numbers and of categories with an order, ``d``."""
        return torch.tensor(
            [
                isinstance(part, Number) or part.is_ordered
                for part in self.parts
                for _ in range(part.width)
            ]
        )

    @property
    def varying(self) -> tuple[Number | Category, ...]:
        """The parameters that are not fixed."""
        return tuple(part for part in self.parts if part.width)

    @property
    def count(self) -> float:
        """Number of combinations."""
        return math.prod(part.count for part in self.parts)

    @property
    def is_continuous(self) -> bool:
        """Whether no parameter that varies is an integer or a category."""
        return all(isinstance(part, Number) and not part.is_integer for part in self.varying)

    def combinations(self) -> Tensor:
        """Return all combinations, ``count x d``.

        Raises:
            InputDataError: if a parameter is a float.
        """
        for part in self.parts:
            if math.isinf(part.count):
                raise InputDataError(
                    f"Expected choices of whole numbers and categories. Got {part.name}, a float: "
                    "give bounds instead."
                )
        columns = [[part.encode(value) for value in part.values()] for part in self.parts]
        rows = [list(chain.from_iterable(row)) for row in product(*columns)]
        return torch.tensor(rows, dtype=torch.float64)

    def encode(self, values: Named) -> Tensor:
        """Return the columns of values by name, ``d``; those that are fixed may be left out.

        Raises:
            InputDataError: if a name is missing or unknown, or a value none of its parameter.
        """
        given = dict(values.items())
        fixed = {part.name for part in self.parts if not part.width}
        check_names(given, self.names, "values of", optional=fixed)
        columns: list[float] = []
        for part in self.parts:
            # A fixed one is checked as well, where it is given.
            columns += part.encode(given[part.name]) if part.name in given else []
        return torch.tensor(columns, dtype=torch.float64)

    def encode_table(self, table: Frame) -> Tensor:
        """Return the columns of each row of a table, ``n x d``; other columns are ignored.

        Raises:
            InputDataError: if a name is missing, or a value none of its parameter, with the row.
        """
        rows = []
        known = table[[name for name in self.names if name in table.columns]]
        for label, values in zip(known.index, known.to_dict("records"), strict=True):
            try:
                rows.append(self.encode(values))
            except InputDataError as error:
                raise InputDataError(f"{error} In row {label!r} of the table.") from error
        return torch.stack(rows) if rows else torch.empty(0, self.dim, dtype=torch.float64)

    def decode(self, columns: Tensor) -> dict[str, Value]:
        """Return the values by name of columns, ``d`` or ``1 x d``."""
        row = iter(columns.reshape(-1).tolist())
        return {part.name: part.decode(list(islice(row, part.width))) for part in self.parts}

    def snap(self, X: Tensor) -> Tensor:
        """Return columns, ``n x d``, without rounding to single precision.

        Raises:
            BotorchTensorDimensionError: if ``X`` has the wrong width.
            InputDataError: if a row is no value of the parameters.
        """
        check_last_dimension("X", X, self.dim)
        check_coordinates("X", X)
        lower, upper = self.bounds
        near = self.nearest(X)
        scale = torch.maximum(lower.abs(), upper.abs())
        wrong = ((X - near).abs() > SINGLE_PRECISION * scale).any(dim=-1)
        if wrong.any():
            raise InputDataError(
                f"Expected values of {', '.join(self.names)} as columns from {lower.tolist()} to "
                f"{upper.tolist()}, whole where they are. Got {X[wrong][0].tolist()}."
            )
        return near

    def nearest(self, X: Tensor) -> Tensor:
        """Return the nearest legal columns, ``... x d``."""
        pieces = X.split([part.width for part in self.varying], dim=-1)
        near = [part.nearest(piece) for part, piece in zip(self.varying, pieces, strict=True)]
        return torch.cat(near, dim=-1)

    def expand(self, searched: Tensor) -> Tensor:
        """Return columns ``... x d`` of those that are searched, one for each varying parameter."""
        pieces = zip(self.varying, searched.split(1, dim=-1), strict=True)
        return torch.cat([part.expand(piece) for part, piece in pieces], dim=-1)

    def from_unit(self, unit: Tensor) -> Tensor:
        """Return columns of uniform numbers in [0, 1), one for each varying parameter."""
        pieces = zip(self.varying, unit.split(1, dim=-1), strict=True)
        return self.expand(torch.cat([part.from_unit(piece) for part, piece in pieces], dim=-1))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parameters as plain data."""
        return [asdict(part) for part in self.parts]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Parameters:
        """Return the parameters of plain data, as :meth:`to_json` returns them."""
        return cls(
            tuple(
                Category(**{**part, "choices": tuple(part["choices"])})
                if "choices" in part
                else Number(**part)
                for part in data
            )
        )


def _range(name: Any, bounds: tuple[Any, ...]) -> Number:
    """Return the number between two bounds, an integer if both are."""
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name.")
    values = as_numbers(name, bounds)
    check_coordinates(name, values)
    lower, upper = values.tolist()
    if not lower < upper:
        raise ValueError(f"the lower bound of {name} is not below the upper one.")
    return Number(name, lower, upper, all(isinstance(bound, Integral) for bound in bounds))


def _part_of(hyperparameter: Any) -> Number | Category:
    """Return the parameter that a hyperparameter of ConfigSpace describes."""
    from ConfigSpace import hyperparameters as hp

    name = hyperparameter.name
    match hyperparameter:
        case hp.UniformFloatHyperparameter() | hp.UniformIntegerHyperparameter():
            lower, upper = float(hyperparameter.lower), float(hyperparameter.upper)
            is_integer = isinstance(hyperparameter, hp.UniformIntegerHyperparameter)
            part = Number(name, lower, upper, is_integer, bool(hyperparameter.log))
            check_coordinates(name, torch.tensor([lower, upper]))
            return part
        case hp.CategoricalHyperparameter(weights=None):
            return Category(name, tuple(plain_value(each) for each in hyperparameter.choices))
        case hp.OrdinalHyperparameter():
            values = tuple(plain_value(each) for each in hyperparameter.sequence)
            return Category(name, values, is_ordered=True)
        case hp.Constant():
            return Category(name, (plain_value(hyperparameter.value),))
    raise InputDataError(
        f"Expected a uniform float or integer, a category without weights or a constant: {name}. "
        f"Got {hyperparameter}."
    )
