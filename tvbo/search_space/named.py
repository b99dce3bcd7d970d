"""Forms in which values and tables come by name, without an import of pandas for their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeGuard

from torch import Tensor


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


def is_named(values: object) -> TypeGuard[Named]:
    """Return whether values come by name."""
    return hasattr(values, "items")
