"""Named, typed parameters, and the columns of a tensor that stand for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.functional import one_hot

from tvbo.spaces.observations import check_coordinates, check_last_dimension
from tvbo.values import Frame, Named, as_number, as_numbers, check_names, did_you_mean

Value = str | bool | int | float
"""A value of a parameter."""

SINGLE_PRECISION = 1e-6
"""Relative difference up to which two numbers are equal: torch's default dtype is float32."""

DIGITS = 15
"""Significant digits of a number on a logarithmic scale, so that 0.01 comes back as 0.01."""

MOST_SEARCHED = 20
"""Number of values of an integer up to which a search takes them one by one, as BoTorch's
``optimize_acqf_mixed_alternating``; between more it searches as between floats, and rounds."""


@dataclass(frozen=True)
class Number:
    """A number between two bounds, in one column: the number, or its natural logarithm.

    Args:
        name: Name of the parameter.
        lower: Smallest value.
        upper: Largest value.
        is_integer: Whether it is a whole number.
        is_log: Whether its column holds the logarithm.
    """

    name: str
    lower: float
    upper: float
    is_integer: bool = False
    is_log: bool = False

    width: ClassVar[int] = 1
    """Number of columns."""

    def __str__(self) -> str:
        scale = ", logarithmic" if self.is_log else ""
        return f"{self.name} from {self.lower:g} to {self.upper:g}{scale}"

    @property
    def column_names(self) -> list[str]:
        """Name of the column."""
        return [f"log {self.name}" if self.is_log else self.name]

    @property
    def bounds(self) -> Tensor:
        """Smallest and largest value of the column, ``2 x 1``."""
        return self._to_column(torch.tensor([[self.lower], [self.upper]], dtype=torch.float64))

    search_bounds = bounds
    """Smallest and largest value of the column that is searched, ``2 x 1``."""

    @property
    def count(self) -> float:
        """Number of values."""
        return self.upper - self.lower + 1 if self.is_integer else math.inf

    @property
    def searched_values(self) -> list[float] | None:
        """Values of its column that a search takes one by one; None where there are too many."""
        if self.count > MOST_SEARCHED:
            return None
        values = torch.arange(self.lower, self.upper + 1, dtype=torch.float64)
        return self._to_column(values).tolist()

    def values(self) -> Sequence[Value]:
        """Return all values of an integer."""
        return range(int(self.lower), int(self.upper) + 1)

    def read(self, text: str) -> Any:
        """Return the value that a text stands for; the text itself if it is none."""
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text

    def encode(self, value: Any) -> list[float]:
        """Return a value as columns; raise ``InputDataError`` if it is none."""
        number = as_number(self.name, value)
        if self.is_integer and not number.is_integer():
            raise InputDataError(f"Expected a whole number for {self.name}. Got {value!r}.")
        low_slack = high_slack = SINGLE_PRECISION * max(abs(self.lower), abs(self.upper))
        if self.is_log:
            low_slack, high_slack = SINGLE_PRECISION * self.lower, SINGLE_PRECISION * self.upper
        if not self.lower - low_slack <= number <= self.upper + high_slack:
            raise InputDataError(
                f"Expected {self.name} from {self.lower:g} to {self.upper:g}. Got {value!r}."
            )
        number = min(max(number, self.lower), self.upper)
        return [math.log(number) if self.is_log else number]

    def decode(self, columns: Sequence[float]) -> Value:
        """Return the value for which columns stand."""
        (value,) = columns
        if self.is_log:
            value = float(f"{math.exp(value):.{DIGITS}g}")
        value = min(max(value, self.lower), self.upper)
        return round(value) if self.is_integer else value

    def between(self, columns: Tensor) -> Number:
        """Return the parameter with the values from the first of two columns to the second."""
        lower, upper = (columns.exp() if self.is_log else columns).flatten().tolist()
        if self.is_integer:
            slack = SINGLE_PRECISION * max(abs(lower), abs(upper))
            lower, upper = math.ceil(lower - slack), math.floor(upper + slack)
        return replace(self, lower=max(lower, self.lower), upper=min(upper, self.upper))

    def expand(self, searched: Tensor) -> Tensor:
        """Return the columns of the searched ones, ``... x 1``."""
        return searched

    def from_unit(self, unit: Tensor) -> Tensor:
        """Return the searched columns of uniform numbers in [0, 1), ``... x 1``."""
        lower, upper = self.bounds
        if self.is_integer and not self.is_log:
            return (self.lower + (unit * self.count).floor()).clamp(lower, upper)
        return self.nearest((lower + unit * (upper - lower)).clamp(lower, upper))

    def nearest(self, columns: Tensor) -> Tensor:
        """Return the nearest legal columns, ``... x 1``."""
        columns = columns.clamp(*self.bounds)
        if not self.is_integer:
            return columns
        return self._to_column((columns.exp() if self.is_log else columns).round())

    def _to_column(self, values: Tensor) -> Tensor:
        return values.log() if self.is_log else values


@dataclass(frozen=True)
class Category:
    """One of several values, in columns of zeros and ones, one for each value.

    Two values need but one column, 0 or 1, one value none. Values with an order are numbered 0, 1,
    2, ... in one column.

    Args:
        name: Name of the parameter.
        choices: The values.
        is_ordered: Whether neighbors in the order are more alike than others.

    Raises:
        InputDataError: if two values are the same as text, or one is no text, number or boolean.
    """

    name: str
    choices: Sequence[Value]
    is_ordered: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(map(plain_value, self.choices)))
        words = [str(choice) for choice in self.choices]
        if len(set(words)) < len(words) or not words:
            raise InputDataError(
                f"Expected values of {self.name}, which differ as text. Got {list(self.choices)}."
            )

    def __str__(self) -> str:
        if len(self.choices) == 1:
            return f"{self.name} = {self.choices[0]}"
        return f"{self.name} in {(' < ' if self.is_ordered else ', ').join(map(str, self.choices))}"

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        if self._is_one_hot:
            return [f"{self.name}={choice}" for choice in self.choices]
        return [self.name] * self.width

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.choices) if self._is_one_hot else min(1, len(self.choices) - 1)

    @property
    def bounds(self) -> Tensor:
        """Smallest and largest value of each column, ``2 x width``."""
        upper = 1 if self._is_one_hot else len(self.choices) - 1
        return torch.tensor([[0.0], [upper]], dtype=torch.float64).expand(2, self.width)

    @property
    def search_bounds(self) -> Tensor:
        """Smallest and largest place among the choices, ``2 x 1``."""
        return torch.tensor([[0.0], [len(self.choices) - 1]], dtype=torch.float64)

    @property
    def count(self) -> float:
        """Number of values."""
        return len(self.choices)

    @property
    def searched_values(self) -> list[float]:
        """Places of the choices."""
        return [float(i) for i in range(len(self.choices))]

    def values(self) -> Sequence[Value]:
        """Return all values."""
        return self.choices

    def read(self, text: str) -> Any:
        """Return the choice that a text stands for; the text itself if it is none."""
        named: dict[str, Value] = {str(choice): choice for choice in self.choices}
        # As TOML and JSON write them.
        named |= {str(flag).lower(): flag for flag in self.choices if isinstance(flag, bool)}
        return named.get(text, text)

    def encode(self, value: Any) -> list[float]:
        """Return a value as columns; raise ``InputDataError`` if it is none."""
        value = plain_value(value)
        for place, choice in enumerate(self.choices):
            # True is not 1, and "1" is neither.
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return self.expand(torch.tensor([float(place)])).tolist()
        raise InputDataError(
            f"Expected {self.name} to be one of {', '.join(map(repr, self.choices))}. "
            f"Got {value!r}{did_you_mean(value, self.choices)}"
        )

    def decode(self, columns: Sequence[float]) -> Value:
        """Return the value for which columns stand."""
        if self._is_one_hot:
            return self.choices[max(range(self.width), key=columns.__getitem__)]
        return self.choices[round(columns[0]) if columns else 0]

    def between(self, columns: Tensor) -> Category:
        """Return the category itself, of which all values may follow each other."""
        return self

    def expand(self, searched: Tensor) -> Tensor:
        """Return the columns of places among the choices, ``... x 1``."""
        if self._is_one_hot:
            return one_hot(searched.squeeze(-1).round().long(), self.width).to(torch.float64)
        return searched[..., : self.width]

    def from_unit(self, unit: Tensor) -> Tensor:
        """Return places among the choices for uniform numbers in [0, 1), ``... x 1``."""
        return (unit * len(self.choices)).floor().clamp(max=len(self.choices) - 1)

    def nearest(self, columns: Tensor) -> Tensor:
        """Return the nearest legal columns, ``... x width``."""
        if self._is_one_hot:
            return one_hot(columns.argmax(dim=-1), self.width).to(columns)
        return columns.clamp(*self.bounds).round()

    @property
    def _is_one_hot(self) -> bool:
        return len(self.choices) > 2 and not self.is_ordered


@dataclass(frozen=True)
class Parameters:
    """Named parameters, and the columns of a tensor that stand for their values.

    Args:
        parts: The parameters in the order of their columns.
    """

    parts: tuple[Number | Category, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

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
        unknown = [*getattr(space, "conditions", ()), *getattr(space, "forbidden_clauses", ())]
        if unknown:
            raise InputDataError(
                "Expected parameters without conditions or forbidden clauses. Got "
                f"{[str(each) for each in unknown]}."
            )
        parameters = cls(tuple(_part_of(name, given) for name, given in space.items()))
        if parameters.dim == 0:
            raise InputDataError(
                "Expected parameters by name of which one can vary, such as {'rate': (0.0, 1.0), "
                f"'kind': ['a', 'b']}}. Got {space!r}."
            )
        return parameters

    @classmethod
    def of_table(cls, table: Frame) -> Parameters:
        """Read parameters from the columns of a table: numbers, and categories of all else.

        Those of an ordered categorical of pandas have an order.

        Raises:
            InputDataError: if there are no rows, a cell is empty, names are not distinct texts, or
                nothing varies.
        """
        names = list(table.columns)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InputDataError(f"Expected a table with distinct names of columns. Got {names}.")
        if len(table.index) == 0:
            raise InputDataError("Expected a table with rows. Got an empty one.")
        if empty := [name for name in names if table[name].isna().any()]:
            raise InputDataError(f"Expected a value in every cell. Got empty ones in {empty}.")
        parts: list[Number | Category] = []
        for name in names:
            if getattr(table[name].dtype, "ordered", False):
                parts.append(Category(name, table[name].dtype.categories, is_ordered=True))
                continue
            values: list[Any] = [plain_value(value) for value in table[name]]
            if any(isinstance(value, str | bool) for value in values):
                parts.append(Category(name, tuple(dict.fromkeys(values))))
            else:
                whole = all(isinstance(value, int) for value in values)
                parts.append(Number(name, min(values), max(values), whole))
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

    def between(self, columns: Tensor) -> Parameters:
        """Return the parameters with the numbers from one row to another, ``2 x d``."""
        limits = columns.clamp(*self.bounds).split([part.width for part in self.parts], dim=-1)
        parts = zip(self.parts, limits, strict=True)
        return Parameters(tuple(part.between(each) for part, each in parts))

    @property
    def is_number(self) -> Tensor:
        """Mask of the columns of numbers and of categories with an order, ``d``."""
        kinds = [isinstance(part, Number) or part.is_ordered for part in self.varying]
        widths = [part.width for part in self.varying]
        return torch.tensor(kinds).repeat_interleave(torch.tensor(widths))

    @property
    def varying(self) -> tuple[Number | Category, ...]:
        """The parameters that are not fixed."""
        return tuple(part for part in self.parts if part.width)

    def in_columns(self) -> Iterator[tuple[Number | Category, slice]]:
        """Iterate over the parameters that are not fixed, each with its columns in a row."""
        start = 0
        for part in self.varying:
            yield part, slice(start, start + part.width)
            start += part.width

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Parameters:
        """Return the parameters of plain data, as ``asdict`` returns them."""
        parts = [(Category if "choices" in part else Number)(**part) for part in data["parts"]]
        return cls(tuple(parts))


def _part_of(name: Any, given: Any) -> Number | Category:
    """Return the parameter that a range, values or a hyperparameter of ConfigSpace describe."""
    if not isinstance(name, str):
        raise InputDataError(f"Expected names of parameters in text. Got {name!r}.")
    is_log = is_ordered = False
    if not isinstance(given, tuple | list | Value | np.generic):
        from ConfigSpace import hyperparameters as hp

        if getattr(given, "name", name) != name:
            raise InputDataError(
                f"Expected a parameter of the name under which it stands, {name!r}. "
                f"Got {given.name!r}."
            )
        match given:
            case hp.UniformFloatHyperparameter() | hp.UniformIntegerHyperparameter():
                given, is_log = (given.lower, given.upper), bool(given.log)
            case hp.CategoricalHyperparameter(weights=None):
                given = list(given.choices)
            case hp.OrdinalHyperparameter():
                given, is_ordered = list(given.sequence), True
            case hp.Constant():
                given = [given.value]
            case _:
                raise InputDataError(
                    "Expected a range (lower, upper), a list of values or one value, or of "
                    "ConfigSpace a uniform float or integer, a category without weights or a "
                    f"constant for {name}. Got {given!r}."
                )
    if not isinstance(given, tuple):
        return Category(name, given if isinstance(given, list) else [given], is_ordered)
    values = as_numbers(name, given)
    check_coordinates(name, values)
    if values.shape != (2,) or not values[0] < values[1]:
        raise InputDataError(f"Expected (lower, upper) for {name}. Got {given!r}.")
    is_integer = all(isinstance(bound, Integral) for bound in given)
    lower, upper = values.tolist()
    return Number(name, lower, upper, is_integer, is_log)


def plain_value(value: Any) -> Value:
    """Return a value as a plain Python one.

    Raises:
        InputDataError: if it is neither text, nor a number, nor a truth value.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return value
    number = as_number("a category that is no text, True or False", value)
    if not math.isfinite(number):
        raise InputDataError(f"Expected text, a finite number, True or False. Got {value!r}.")
    return int(value) if isinstance(value, Integral) else number
