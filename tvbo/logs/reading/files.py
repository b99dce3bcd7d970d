"""Files of tables: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pandas as pd

from tvbo.spaces.times import from_text
from tvbo.values import TableError

PARQUET = (".parquet", ".pq")
"""Endings of the names of Parquet files."""

UNREADABLE = (ValueError, OSError, EOFError, zlib.error)
"""What pandas raises for a file that is not CSV, or a compressed file that is truncated or broken.
Its parser errors, and those of decoding, are ValueErrors."""


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", r"\s+": "spaces"}
"""What a file may have between its columns, as text."""


USUAL = {"sep": ",", "decimal": ".", "encoding": "utf-8"}
"""How a CSV file is written where nothing in it says otherwise."""


class CsvOptions(TypedDict, total=False):
    r"""How a CSV file is written; of each option None looks at the beginning of the file.

    Args:
        sep: What is between its columns, one character, or ``\s+`` for any white space. A space
            after it is left out.
        decimal: The decimal point.
        encoding: The encoding of its text.
    """

    sep: str | None
    decimal: str | None
    encoding: str | None


def read_csv(path: str | Path, **csv: Unpack[CsvOptions]) -> pd.DataFrame:
    """Read a CSV file with a header and as many cells in each row, numbered by lines.

    ``attrs["remarks"]`` of the table says how it was read, if not as UTF-8 with commas and points.

    Raises:
        TableError: if the file is missing, empty or no such CSV file, or a name occurs twice in its
            header; where other options seem to fit the file, the message names them.
    """
    if not Path(path).is_file():
        raise TableError(f"Expected a CSV file. Got {path}, which is no file.")
    given = {name: str(value) for name, value in csv.items() if value is not None}
    found = _found_in(path)
    used = found | given | ({"sep": "\t"} if given.get("sep") == r"\t" else {})
    if (len(used["sep"]) > 1 and used["sep"] != r"\s+") or len(used["decimal"]) > 1:
        raise TableError(
            "Expected one character for --sep, or \\t or \\s+, and one for --decimal. "
            f"Got {used['sep']!r} and {used['decimal']!r}."
        )
    others = {name: value for name, value in found.items() if value != used[name]}
    hint = f" It seems to have {_described(others)}." if others else ""
    read: Any = partial(pd.read_csv, path, skipinitialspace=True, **used)
    try:
        # As it is written: the columns of a frame have other names if one occurs twice.
        header = read(header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].str.strip()
        # Read in one chunk: otherwise a column of numbers and words warns, and has both types.
        frame = read(low_memory=False)
    except (*UNREADABLE, LookupError) as error:
        is_encoding_known = "encoding" in given or used["encoding"] != "utf-8"
        if isinstance(error, UnicodeError) and not is_encoding_known:
            # The beginning had no letter by which to tell.
            return read_csv(path, **csv | {"encoding": "latin-1"})
        raise TableError(f"Expected a CSV file. Got {path}: {str(error).strip()}.{hint}") from error
    if not header[0].isdigit() and from_text(header[:1]).notna().all():
        raise TableError(f"Expected a header, names of columns, in {path}. Got {header[0]!r}.")
    if len(header) == 1 and others:
        raise TableError(f"Expected columns of {path}. Got {header[0]!r} alone.{hint}")
    twice = header[header.duplicated() & (header != "")]
    if len(twice):
        raise TableError(f"Expected each column once in {path}. Got '{twice.iloc[0]}' twice.")
    if not isinstance(frame.index, pd.RangeIndex):
        raise TableError(
            f"Expected as many cells in each row of {path} as in its header, {frame.shape[1]}. "
            "Got rows with more."
        )
    frame.columns = frame.columns.str.strip()
    for name, column in frame.select_dtypes(exclude="number").items():
        frame[name] = _cleaned(column, used["decimal"])
    if frame.empty:
        raise TableError(f"Expected rows in {path}. Got an empty log.")
    frame.index = pd.RangeIndex(2, len(frame) + 2, name="line")
    if not given and found != USUAL:
        unusual = {name: value for name, value in found.items() if value != USUAL[name]}
        frame.attrs["remarks"] = [f"the file was read with {_described(unusual)}"]
    return frame


def _cleaned(column: pd.Series, decimal: str) -> pd.Series:
    """Return cells without white space around them, and numbers among them with a decimal point.

    Where fewer than half are numbers, these are labels such as ``1,2``.

    Raises:
        TableError: if the decimal point is a comma, and a number has a point.
    """
    cells = column.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    if decimal == ".":
        return cells
    plain = cells.map(lambda cell: cell.replace(decimal, ".") if isinstance(cell, str) else cell)
    is_number = pd.to_numeric(plain, errors="coerce").notna()
    if is_number.sum() < cells.count() / 2:
        return cells
    has_point = is_number & cells.map(lambda cell: isinstance(cell, str) and "." in cell)
    if has_point.any():
        place = int(has_point.to_numpy().argmax())
        raise TableError(
            f"Expected numbers with a decimal '{decimal}' and no point in column '{column.name}'. "
            f"Got {cells.iloc[place]!r} in line {place + 2}: a thousand, or --decimal '.'?"
        )
    return plain.where(is_number, cells)


def _found_in(path: str | Path) -> dict[str, str]:
    """Return the options that the first lines of a file seem to be written with.

    Raises:
        TableError: if it is a workbook.
    """
    try:
        with (gzip.open if Path(path).suffix == ".gz" else open)(path, "rb") as file:
            raw = file.read(2**16)
    except UNREADABLE:
        return dict(USUAL)
    if raw.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise TableError(f"Expected a CSV file. Got {path}, a workbook of Excel: save it as CSV.")
    found = USUAL | {"encoding": _encoding_of(raw)}
    text = raw.decode(found["encoding"], "replace")
    head, row, *_ = [*text.splitlines(), "", ""]
    best = max(",;\t|", key=head.count)
    best = best if best in head else r"\s+"
    cells, below = (len(line.split(None if best == r"\s+" else best)) for line in (head, row))
    # Otherwise a title, one column, or commas in cells.
    if cells == below > 1:
        found["sep"] = best
    if found["sep"] != "," and re.search(r"\d,\d", row):
        found["decimal"] = ","
    return found


def _described(options: dict[str, str]) -> str:
    """Return options as text: what they mean, and how they are given."""
    names = {"sep": SEPARATORS.get(options.get("sep", "")), "decimal": "decimal commas"}
    words = [names.get(name) or f"text in {each}" for name, each in options.items()]
    given = [f"--{name} '{each}'" for name, each in options.items()]
    return f"{', '.join(words)} ({' '.join(given)})".replace("\t", r"\t")


def _encoding_of(raw: bytes) -> str:
    """Return in which encoding the beginning of a text seems to be written."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for start, encoding in enumerate(("utf-16-be", "utf-16-le")):
        if raw[start::2].count(0) > len(raw) / 4:
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def read_table(path: str | Path, **csv: Unpack[CsvOptions]) -> pd.DataFrame:
    """Read a Parquet file, known by its ending, or a CSV file.

    The index has the name and the numbers by which errors name rows: ``line`` of a CSV file, from
    2, ``row`` of a Parquet file, from 0. A named index of a Parquet file, such as one of
    timestamps, becomes the first column.

    Raises:
        TableError: if the file is missing, empty or no such file, or pyarrow is not installed.
    """
    if Path(path).suffix.lower() not in PARQUET:
        return read_csv(path, **csv)
    if not Path(path).is_file():
        raise TableError(f"Expected a Parquet file. Got {path}, which is no file.")
    for option, given in csv.items():
        if given is not None:
            raise TableError(f"Expected no --{option} with a Parquet file. Got {given!r}.")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise TableError(
            f"Expected pyarrow to read {path}: pip install pyarrow, or save the table as CSV. Got "
            "no pyarrow."
        ) from error
    except Exception as error:  # Those of pyarrow have no base class but this one.
        raise TableError(f"Expected a Parquet file. Got {path}: {str(error).strip()}.") from error
    if frame.empty:
        raise TableError(f"Expected rows in {path}. Got an empty log.")
    return frame.reset_index(drop=isinstance(frame.index, pd.RangeIndex)).rename_axis("row")
