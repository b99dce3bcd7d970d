"""CSV files and their columns, with errors that name the cell."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pandas as pd

UNREADABLE = (
    pd.errors.ParserError,
    pd.errors.EmptyDataError,
    UnicodeDecodeError,
    OSError,
    EOFError,
    zlib.error,
)
"""What pandas raises for a file that is no CSV, or a compressed file that is cut off or broken."""


class TableError(ValueError):
    """A file that does not hold what was asked of it."""


def read_csv(path: str | Path) -> pd.DataFrame:
    """A CSV file with a header and rows of its length.

    Raises:
        TableError: if there is none.
    """
    if not Path(path).is_file():
        raise TableError(f"Expected a CSV file. Got {path}, which is no file.")
    try:
        # In one piece: in parts, a column of numbers and words would warn, and be of both types.
        frame = pd.read_csv(path, low_memory=False)
    except UNREADABLE as error:
        raise TableError(f"Expected a CSV file. Got {path}: {str(error).strip()}.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise TableError(
            f"Expected as many cells in each row of {path} as in its header, {frame.shape[1]}. "
            "Got rows with more."
        )
    if frame.empty:
        raise TableError(f"Expected rows in {path}. Got an empty log.")
    return frame


def line_of(index: int) -> str:
    """A row as a person finds it: the line of the file, the header being line 1."""
    return f"line {index + 2}"


def numbers_of(column: pd.Series, path: str | Path, allow_empty: bool = False) -> pd.Series:
    """A column as finite numbers, NaN where a cell is empty and may be.

    Raises:
        TableError: naming the cell that is none.
    """
    numbers = pd.to_numeric(column, errors="coerce")
    unreadable = numbers.isna() & column.notna()
    if unreadable.any():
        index = unreadable.idxmax()
        raise TableError(
            f"Expected numbers in column '{column.name}' of {path}. "
            f"Got {column[index]!r} in {line_of(index)}."
        )
    infinite = np.isinf(numbers)
    missing = numbers.isna() & (not allow_empty)
    if (infinite | missing).any():
        index = (infinite | missing).idxmax()
        what = "an infinity" if infinite[index] else "an empty cell"
        raise TableError(
            f"Expected finite numbers in column '{column.name}' of {path}. "
            f"Got {what} in {line_of(index)}."
        )
    return numbers.astype(float)
