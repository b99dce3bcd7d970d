"""What a caller passes: numbers, text, values and tables by name, tensors that are copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

T = TypeVar("T", bound=type)

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

LONGEST = 200
"""Characters of a value that are shown in an error."""


class TableError(ValueError):
    """A table, or an option to read it, that is not as expected."""


def as_numbers(name: str, values: Any) -> Tensor:
    """Return real numbers as a new float64 tensor, in their shape and on their device.

    Args:
        name: What they are, for the error.
        values: A number, tensor, array, or column or table of pandas, or lists of these.

    Raises:
        InputDataError: if a value is no real number, such as a complex number, a truth value or a
            masked one, or above the largest of double precision; a tensor is sparse, or has no
            values; or rows have different lengths.
    """
    if isinstance(values, Tensor):
        is_real = values.dtype.is_floating_point or values.dtype in INTEGERS
        is_dense = values.layout is torch.strided and not (values.is_meta or values.is_nested)
        if not (is_real and is_dense):
            kind = f"a tensor of {values.dtype} and {values.layout}, on {values.device}"
            raise _no_real_numbers(name, kind)
        return values.detach().to(torch.float64, copy=True)
    try:
        return torch.from_numpy(np.array(_plain(name, values), dtype=np.float64, order="C"))
    except ValueError as error:
        raise _no_real_numbers(name, f"rows of different lengths: {error}") from error


def as_number(name: str, value: Any) -> float:
    """Return one real number as a float.

    Raises:
        InputDataError: as :func:`as_numbers`.
        BotorchTensorDimensionError: if there is not one number.
    """
    if isinstance(value, float):
        return float(value)
    number = as_numbers(name, value)
    if number.numel() != 1:
        raise BotorchTensorDimensionError(
            f"Expected one number for {name}. Got shape {tuple(number.shape)}."
        )
    return number.item()


def shortened(words: object, width: int = 120) -> str:
    """Return words on one line, cut to a width."""
    text = " ".join(str(words).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def copies_tensors(*names: str) -> Callable[[T], T]:
    """Make attributes of a class hold a copy of their tensor, and return a new copy each time.

    Whatever is done to a tensor that was given or read, the object stays as it is.
    """

    def decorate(cls: T) -> T:
        for name in names:
            setattr(cls, name, _CopiedTensor(name))
        return cls

    return decorate


class _CopiedTensor:
    """An attribute whose tensor, or None, is copied when it is set and when it is read."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self._name]
        return None if value is None else value.clone()

    def __set__(self, instance: Any, value: Tensor | None) -> None:
        vars(instance)[self._name] = None if value is None else value.detach().clone()


def _plain(name: str, values: Any) -> Any:
    """Return floats and arrays of real numbers, in lists as they came."""
    if isinstance(values, Tensor):
        return as_numbers(name, values).cpu().numpy()
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return [_plain(name, each) for each in values]
    if hasattr(values, "__array__"):
        array = np.asanyarray(values)
        if array.dtype.kind == "O" and array.ndim > 0:
            return [_plain(name, each) for each in array.tolist()]
        if array.dtype.kind in "iuf" and not np.ma.is_masked(array):
            return array
    elif isinstance(values, Real | Decimal) and not isinstance(values, bool):
        try:
            return float(values)
        except OverflowError as error:
            raise _no_real_numbers(name, "a number above the largest float") from error
    shown = shortened(repr(values), LONGEST)
    raise _no_real_numbers(name, f"{shown} of type {type(values).__name__}")


def _no_real_numbers(name: str, got: str) -> InputDataError:
    return InputDataError(f"Expected real numbers for {name}. Got {got}.")


def check_positive(**values: float) -> None:
    """Raise unless every value is positive and finite; the keywords are their names."""
    _check(values, "> 0 and finite", lambda value: 0 < value < math.inf)


def check_not_negative(**values: float) -> None:
    """Raise unless every value is at least 0 and finite."""
    _check(values, ">= 0 and finite", lambda value: 0 <= value < math.inf)


def check_count(**values: int) -> None:
    """Raise unless every value is a whole number, at least 1."""
    _check(values, "to be a whole number >= 1", lambda n: 1 <= n < math.inf and n == int(n))


def check_probability(**values: float) -> None:
    """Raise unless every value lies in (0, 1)."""
    _check(values, "in (0, 1)", lambda value: 0 < value < 1)


def _check(values: Mapping[str, float], wanted: str, is_good: Callable[[float], bool]) -> None:
    for name, value in values.items():
        if not is_good(value):
            raise ValueError(f"Expected {name} {wanted}. Got {value}.")


class Named(Protocol):
    """Values by name: a mapping, or a ``pandas.Series``, which is not imported for its type."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return pairs of name and value."""


class Frame(Protocol):
    """A table: a ``pandas.DataFrame``, which is not imported for its type."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    @property
    def index(self) -> Any:
        """Labels of the rows."""

    def __getitem__(self, key: Any) -> Any:
        """Return a column, or several."""


Table = Tensor | Mapping[str, Any] | Frame
"""Rows of numbers; or a table whose columns have names; or integers and categories by name, of
which all combinations are meant."""


def is_frame(table: object) -> TypeGuard[Frame]:
    """Return whether rows come as a table whose columns have names."""
    return hasattr(table, "columns")


def column(table: Frame, name: str) -> list[Any]:
    """Return the cells of a column of a table; None for an empty one.

    Raises:
        InputDataError: if there is no such column.
    """
    if name not in table.columns:
        raise InputDataError(
            f"Expected a column {name!r} in the table. Got {', '.join(map(str, table.columns))}."
        )
    import pandas as pd

    return [None if pd.isna(cell) is True else cell for cell in table[name].tolist()]


def is_named(values: object) -> TypeGuard[Named]:
    """Return whether values come by name."""
    return hasattr(values, "items")


def is_any_nan(values: Any) -> bool:
    """Return whether one of some numbers, which may come by name, is NaN."""
    given = list(dict(values.items()).values()) if is_named(values) else values
    return bool(as_numbers("Y", given).isnan().any())


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, if one is near."""
    near = get_close_matches(str(name), map(str, known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def check_names(
    given: Iterable[Any], known: Sequence[str], what: str, optional: Collection[str] = ()
) -> None:
    """Raise ``InputDataError`` unless names are those known, each of them.

    Args:
        given: The names that came.
        known: Those that were declared.
        what: What they are names of, for the message.
        optional: Those that need not come.
    """
    given, wanted = dict.fromkeys(given), set(known)
    missing = [name for name in known if name not in given and name not in optional]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        words = [f"no {', '.join(missing)}"] if missing else []
        for name in unknown:
            near = get_close_matches(str(name), missing or known, n=1)
            words.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        raise InputDataError(f"Expected {what} {', '.join(known)}. Got {' and '.join(words)}.")
