"""CSV files and their columns, with errors that name the cell."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

UNREADABLE = (ValueError, OSError, EOFError, zlib.error)
"""What pandas raises for a file that is not CSV, or a compressed file that is truncated or broken.
Its parser errors, and those of decoding, are ValueErrors."""


class TableError(ValueError):
    """A table, or an option to read it, that is not as expected."""


def read_csv(path: str | Path) -> pd.DataFrame:
    """Read a CSV file with a header and as many cells in each row.

    Raises:
        TableError: if the file is missing, empty or no such CSV file.
    """
    import pandas as pd

    if not Path(path).is_file():
        raise TableError(f"Expected a CSV file. Got {path}, which is no file.")
    try:
        # Read in one chunk: otherwise a column of numbers and words warns, and has both types.
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
    """Return a row as the line of the file, with the header in line 1."""
    return f"line {index + 2}"


def numbers_of(column: pd.Series, path: str | Path, allow_empty: bool = False) -> pd.Series:
    """Return a column as finite numbers, with NaN for an allowed empty cell.

    Raises:
        TableError: if a cell is not a finite number; the message names the cell.
    """
    import pandas as pd

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
