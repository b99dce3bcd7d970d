"""Files of tables: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

PARQUET = (".parquet", ".pq")
"""Endings of the names of Parquet files."""

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


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a Parquet file, known by its ending, or a CSV file; rows are counted from 0.

    A named index of a Parquet file, such as one of timestamps, becomes the first column.

    Raises:
        TableError: if the file is missing, empty or no such file, or pyarrow is not installed.
    """
    if not _is_parquet(path):
        return read_csv(path)
    import pandas as pd

    if not Path(path).is_file():
        raise TableError(f"Expected a Parquet file. Got {path}, which is no file.")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise TableError(
            f"Expected pyarrow to read {path}: pip install pyarrow, or save the table as CSV. Got "
            "no pyarrow."
        ) from error
    except UNREADABLE as error:
        raise TableError(f"Expected a Parquet file. Got {path}: {str(error).strip()}.") from error
    if frame.empty:
        raise TableError(f"Expected rows in {path}. Got an empty log.")
    return frame.reset_index(drop=isinstance(frame.index, pd.RangeIndex))


def first_row(path: str | Path) -> int:
    """Return the number of the first row in messages: line 2 of CSV, row 0 of a Parquet file."""
    return 0 if _is_parquet(path) else 2


def line_of(index: int, path: str | Path) -> str:
    """Return a row in words: as the line of a CSV file, with the header in line 1, or as a row."""
    return f"{'row' if _is_parquet(path) else 'line'} {index + first_row(path)}"


def _is_parquet(path: str | Path) -> bool:
    return Path(path).suffix.lower() in PARQUET
