"""A named parameter: a number or a category, and the columns of a tensor that stand for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.nn.functional import one_hot

from tvbo.values import as_number

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

    def __str__(self) -> str:
        scale = ", logarithmic" if self.is_log else ""
        return f"{self.name} from {self.lower:g} to {self.upper:g}{scale}"

    @property
    def column_names(self) -> list[str]:
        """Name of the column."""
        return [f"log {self.name}" if self.is_log else self.name]

    @property
    def width(self) -> int:
        """Number of columns, 1."""
        return 1

    @property
    def bounds(self) -> Tensor:
        """Smallest and largest value of the column, ``2 x 1``."""
        return self._to_column(torch.tensor([[self.lower], [self.upper]], dtype=torch.float64))

    @property
    def search_bounds(self) -> Tensor:
        """Smallest and largest value of the column that is searched, ``2 x 1``."""
        return self.bounds

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
        found: list[float] = self._to_column(values).tolist()
        return found

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
        InputDataError: if two values are the same as text.
    """

    name: str
    choices: tuple[Value, ...]
    is_ordered: bool = False

    def __post_init__(self) -> None:
        words = [str(choice) for choice in self.choices]
        if len(set(words)) < len(words):
            raise InputDataError(
                f"Expected values of {self.name} that differ as text. Got {list(self.choices)}."
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
                columns: list[float] = self.expand(torch.tensor([float(place)])).tolist()
                return columns
        near = get_close_matches(str(value), map(str, self.choices), n=1)
        raise InputDataError(
            f"Expected {self.name} to be one of {', '.join(map(repr, self.choices))}. "
            f"Got {value!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
        )

    def decode(self, columns: Sequence[float]) -> Value:
        """Return the value for which columns stand."""
        if self._is_one_hot:
            return self.choices[max(range(self.width), key=columns.__getitem__)]
        return self.choices[round(columns[0]) if columns else 0]

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
