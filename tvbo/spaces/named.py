"""Forms in which values and tables come by name, without an import of pandas for their types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, TypeGuard

from botorch.exceptions.errors import InputDataError
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
