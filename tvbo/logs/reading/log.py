"""Long logs and panels read from files, with errors that name the cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype
from torch import Tensor

from tvbo.logs.reading.files import CsvOptions, TableError, read_table
from tvbo.spaces.times import (
    ISO_8601,
    change_of_unit,
    from_digits,
    from_text,
    parse_timedelta,
    round_unit,
    units_since,
)

MOST_STEPS = 10_000_000
"""Largest number of steps over which a panel is averaged."""


def numbers_of(column: pd.Series, path: str | Path, allow_empty: bool = False) -> pd.Series:
    """Return a column as finite numbers, with NaN for an allowed empty cell.

    Raises:
        TableError: if a cell is not a finite number; the message names the cell.
    """
    # Timestamps and durations would be numbers of their unit.
    cells = column.astype(str) if column.dtype.kind in "mM" else column
    numbers = pd.to_numeric(cells, errors="coerce")
    wrong = np.isinf(numbers) | (numbers.isna() & (column.notna() | (not allow_empty)))
    if wrong.any():
        raise TableError(
            f"Expected finite numbers in column '{column.name}' of {path}. "
            f"Got {_first_cell(column, wrong)}."
        )
    return numbers.astype(float)


def _first_cell(column: pd.Series, wrong: pd.Series) -> str:
    """Return the first of some cells as text, where it stands, and what to try with its comma."""
    index = wrong.idxmax()
    cell = "an empty cell" if pd.isna(column[index]) else repr(column[index])
    where = f" in {column.index.name} {index}" if column.index.name else ""
    has_comma = re.fullmatch(r"'[-+]?\d+,\d+'", cell)
    hint = "; if its comma is that of decimals, try --decimal ','" if has_comma else ""
    return f"{cell}{where}{hint}"


@dataclass(frozen=True)
class TimeAxis:
    """Times as numbers, and the name of their unit.

    Args:
        times: One per row, float64.
        unit: Name of the unit, such as ``10min``.
        origin: Timestamp of time zero; None if the times were numbers.
        remarks: How file and timestamps were read.
    """

    times: Tensor
    unit: str
    origin: pd.Timestamp | None
    remarks: Sequence[str]

    def describe(self, number: float) -> str:
        """Return a number as text: where times were timestamps, as one, to the second."""
        if self.origin is None:
            return f"{number:.15g}"
        at = self.origin + number * parse_timedelta("time unit", self.unit)
        return str(pd.Timestamp(at).round("s"))

    def number(self, option: str, text: str) -> float:
        """Return a time of an option as a number: a timestamp, or a number where times were these.

        Raises:
            TableError: if it is none.
        """
        if self.origin is None:
            return float(numbers_of(pd.Series([text], name=option), "the command").iloc[0])
        at = time_column(pd.DataFrame({option: [text]}), option, "the command").iloc[0]
        return units_since(self.origin, at, self.unit)


@dataclass(frozen=True)
class LogTable:
    """A long log: one row per observation.

    Args:
        axis: The times.
        actions: ``n x d``, followed by the columns of the context.
        Y: ``n x 1``.
        Yvar: ``n x 1``, or None.
        lines: The line of the file of each row; of a Parquet file its row, from 0.
        categories: Labels by column of ``actions``, for columns of text: their values are indices
            of these labels.
        groups: The label of the group of each row, or None.
        num_dropped: Number of rows left out because a cell, or each, was empty.
    """

    axis: TimeAxis
    actions: Tensor
    Y: Tensor
    Yvar: Tensor | None
    lines: list[int]
    categories: dict[int, list[str]]
    groups: list[str] | None
    num_dropped: int

    @property
    def train_X(self) -> Tensor:
        """Rows ``[action | time]``."""
        return torch.cat([self.actions, self.axis.times.unsqueeze(-1)], dim=-1)


def read_log(
    path: str | Path,
    time: str,
    reward: str,
    actions: Sequence[str],
    reward_variance: str | None = None,
    rows: str | None = None,
    time_unit: str | None = None,
    contexts: Sequence[str] = (),
    group: str | None = None,
    **csv: Unpack[CsvOptions],
) -> LogTable:
    """Read a long log: one row per observation, columns by name.

    Args:
        path: A CSV file, or a compressed one such as ``.csv.gz``, or a Parquet file.
        time: Column of times, timestamps or numbers.
        reward: Column of rewards.
        actions: Columns of the action.
        reward_variance: Column of known noise variances, or None.
        rows: ``a:b``, the rows used, counted from 0.
        time_unit: Unit of time, such as ``1h``; default one near the gaps between timestamps.
            Numeric times are not converted; this is then the name of their unit.
        contexts: Columns of the context.
        group: Column of labels of groups, or None.
        **csv: How a CSV file is written, as of :class:`CsvOptions`.

    Rows in which a cell of these columns is empty are left out, and counted.

    Columns of actions and contexts are numbers, or text throughout, which is categories, but for
    texts that seem to be numbers with a unit.

    Raises:
        TableError: if the file, a column or a cell is not as expected; the message names it.
    """
    frame = read_table(path, **csv)
    if not actions:
        raise TableError("Expected at least one action column. Got none.")
    inputs = [*actions, *contexts]
    wanted = [time, reward, *inputs, *(name for name in (reward_variance, group) if name)]
    for name in wanted:
        if name not in frame.columns:
            raise TableError(
                f"Expected a column '{name}' in {path}. "
                f"Got columns {', '.join(map(str, frame.columns))}."
            )
    if len(set(wanted)) < len(wanted):
        raise TableError(f"Expected different columns for each role. Got {', '.join(wanted)}.")
    frame = frame.iloc[row_range(rows, len(frame))]
    num_rows = len(frame)
    remarks = frame.attrs.get("remarks", ())
    frame = frame[frame[wanted].notna().all(axis="columns")]
    if frame.empty:
        raise TableError(f"Expected rows of {path} without empty cells. Got none of {num_rows}.")
    categories, columns = {}, []
    for place, name in enumerate(inputs):
        if _is_category(frame[name], path):
            codes, labels = frame[name].factorize(sort=True)
            categories[place] = labels.tolist()
            columns.append(codes.astype(float))
        else:
            columns.append(numbers_of(frame[name], path).to_numpy())

    def tensor(name: str) -> Tensor:
        return torch.tensor(numbers_of(frame[name], path).to_numpy())[:, None]

    return LogTable(
        axis=time_axis(time_column(frame, time, path), time_unit, remarks),
        actions=torch.tensor(np.stack(columns, axis=-1)),
        Y=tensor(reward),
        Yvar=tensor(reward_variance) if reward_variance else None,
        lines=frame.index.tolist(),
        categories=categories,
        groups=frame[group].astype(str).tolist() if group else None,
        num_dropped=num_rows - len(frame),
    )


OFFSET = r"\d(?:Z|[-+]\d\d:?\d\d)$"
"""The end of a time with an offset from UTC."""

NUMBER = (
    r"^[-+]?([^\w\s#+-]*)\s*[-+]?"  # A sign such as $, not that of numbered labels.
    r"\d+(?:[.,]\d{3})*(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s*(\D{0,8})$"
)
"""A number, with a sign before it or a short unit behind it, or neither."""

FEW = 10
"""Number of labels up to which numbers with one unit, such as sizes, are categories."""


def _is_category(column: pd.Series, path: str | Path) -> bool:
    """Return whether all cells are text that is no number.

    Raises:
        TableError: if nearly all are numbers with the same unit, or decimal comma, and not a few.
    """
    is_text = all(isinstance(cell, str) for cell in column)
    if not is_text or pd.to_numeric(column, errors="coerce").notna().any():
        return False
    before, behind = (part for _, part in column.str.extract(NUMBER).items())
    units, count = before + behind, column.nunique()
    if count > FEW and units.value_counts().max() > 0.9 * len(column):
        raise TableError(
            f"Expected numbers without a unit, or labels, in column '{column.name}' of {path}. Got "
            f"{count} texts that look like numbers, first {_first_cell(column, units.notna())}."
        )
    return True


def time_column(frame: pd.DataFrame, name: str, path: str | Path) -> pd.Series:
    """Return a column of timestamps, with the offset of the first if they have any, or numbers."""
    column = frame[name]
    if is_numeric_dtype(column):
        numbers = numbers_of(column, path)
        if (times := from_digits(numbers)) is None:
            if (change := change_of_unit(numbers.to_numpy())) is not None:
                line = numbers.index
                cells = [f"{numbers.iloc[i]:.15g} in {line.name} {line[i]}" for i in change]
                raise TableError(
                    f"Expected times in one unit in column '{name}' of {path}. Got "
                    f"{' and '.join(cells)}: from there on they are some thousand times as large, "
                    "and so are their gaps, as where seconds become milliseconds."
                )
            return numbers
    else:
        times, texts = from_text(column), column.astype(str)
        has_offset = texts.str.contains(OFFSET)
        if not has_offset.any():
            times = times.dt.tz_convert(None)
        elif has_offset.all() and times.notna().all():
            # One for all, since a log may contain a change of the clocks.
            times = times.dt.tz_convert(pd.Timestamp(column.iloc[0]).tz)
        elif times.notna().all():
            raise TableError(
                f"Expected an offset such as +01:00 in every time in column '{name}' of {path}, or "
                f"in none. Got {_first_cell(texts, ~has_offset)} beside "
                f"{_first_cell(texts, has_offset)}."
            )
    if times.isna().any():
        raise TableError(
            f"Expected timestamps {ISO_8601} or 31.01.2026 12:00, or numbers, in column '{name}' "
            f"of {path}. Got {_first_cell(column.astype(str), times.isna())}."
        )
    return times


def time_axis(times: pd.Series, unit: str | None, remarks: Sequence[str]) -> TimeAxis:
    """Return times as numbers, in a unit or in one near their gaps, and further remarks."""
    if unit is not None and not any(map(str.isalpha, unit)):
        raise TableError(f"Expected time unit like 10min or 1h. Got {unit!r}, without a unit.")
    if not is_datetime64_any_dtype(times):
        column = f"1 ({times.name})" if isinstance(times.name, str) else "1"
        return TimeAxis(torch.tensor(times.to_numpy(dtype=float)), unit or column, None, remarks)
    origin, chosen = times.min(), ""
    if unit is None:
        gaps = times.drop_duplicates().sort_values().diff().dropna()
        if gaps.empty:
            raise TableError(f"Expected at least two times. Got {times.nunique()}.")
        unit = round_unit(gaps)
        ratio = gaps.median() / parse_timedelta("time unit", unit)
        chosen = f": their median gap is {ratio:.3g} × {unit}; --time-unit sets another"
    numbers = ((times - origin) / parse_timedelta("time unit", unit)).to_numpy(dtype=float)
    remark = f"times from {origin} to {times.max()}, in units of {unit}{chosen}"
    return TimeAxis(torch.tensor(numbers), unit, origin, (*remarks, remark))


def row_range(text: str | None, length: int) -> slice:
    """Return rows ``a:b`` of ``length`` as a slice; None is all of them."""
    if text is None:
        return slice(None)
    try:
        start, stop = (int(part) if part else None for part in text.split(":"))
    except ValueError as error:
        raise TableError(f"Expected rows as a:b, such as 0:432. Got {text!r}.") from error
    chosen = slice(start, stop)
    if len(range(length)[chosen]) == 0:
        raise TableError(f"Expected rows among the {length} there are. Got none by {text!r}.")
    return chosen


@dataclass(frozen=True)
class PanelTable:
    """A panel: values of ``n`` arms at ``T`` times.

    Args:
        axis: The times.
        values: ``T x n``; NaN where there is no reading.
        arms: Names of the arms.
        num_dropped: Number of rows, or steps, left out because no arm has a reading.
    """

    axis: TimeAxis
    values: Tensor
    arms: list[str]
    num_dropped: int = 0


def read_panel(
    path: str | Path,
    resample: str | None = None,
    rows: str | None = None,
    time_unit: str | None = None,
    **csv: Unpack[CsvOptions],
) -> PanelTable:
    """Read a panel: first column a timestamp (or a number), every other column an arm.

    Args:
        path: A CSV file, or a compressed one such as ``.csv.gz``, or a Parquet file.
        resample: Average over steps of this length, such as ``10min``; needs timestamps.
        rows: ``a:b``, the rows used, counted from 0 after resampling, without those that are empty.
        time_unit: Unit of time, such as ``1h``. Default: the resampling step, else one near
            the gaps between timestamps. Numeric times are not converted; this is then the name
            of their unit.
        **csv: How a CSV file is written, as of :class:`CsvOptions`.

    Cells may be empty, and their values are NaN; a row without any reading is left out.

    Raises:
        TableError: if the file, a column or a cell is not as expected; the message names it.
    """
    frame = read_table(path, **csv)
    num_rows = len(frame)
    frame = frame.dropna(how="all")
    if frame.shape[1] < 2:
        raise TableError(
            f"Expected a time column and at least one arm in {path}. "
            f"Got columns {', '.join(map(str, frame.columns))}."
        )
    time_name, *arms = frame.columns
    times = time_column(frame, time_name, path)
    values = frame[arms].apply(lambda column: numbers_of(column, path, allow_empty=True))
    values.index = pd.Index(times)
    values = values.sort_index()
    if resample is not None:
        if not is_datetime64_any_dtype(values.index):
            raise TableError(
                f"Expected timestamps in column '{time_name}' to resample. "
                f"Got numbers, from {values.index[0]} to {values.index[-1]}."
            )
        step, span = parse_timedelta("resample", resample), values.index[-1] - values.index[0]
        if span / step > MOST_STEPS:
            raise TableError(
                f"Expected at most {MOST_STEPS:,} steps of resample. Got {resample!r}."
            )
        values = values.resample(step).mean()
        num_rows = len(values)
    elif values.index.has_duplicates:
        repeated = values.index[values.index.duplicated()][0]
        advice = ""
        if is_datetime64_any_dtype(values.index):
            advice = (
                "; --resample averages over steps, and where clocks were set back, an offset such "
                "as +01:00 in each time tells the two hours apart"
            )
        raise TableError(
            f"Expected each time once in column '{time_name}'. Got {repeated} twice{advice}."
        )
    values = values.dropna(how="all")
    num_dropped = num_rows - len(values)
    values = values.iloc[row_range(rows, len(values))]
    empty = values.columns[values.isna().all()]
    if len(empty):
        raise TableError(
            f"Expected a reading of every arm. Got none of arm '{empty[0]}' in {len(values)} rows; "
            "drop the arm, or choose other rows."
        )
    remarks = frame.attrs.get("remarks", ())
    axis = time_axis(values.index.to_series(), time_unit or resample, remarks)
    readings = torch.tensor(values.to_numpy(dtype=float))
    return PanelTable(axis, readings, [str(arm) for arm in arms], num_dropped)
