"""Logs and panels read from CSV files, with errors that name the cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tvbo.csv_files import TableError, line_of, numbers_of, read_csv

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TimeAxis:
    """Times as numbers, and the name of their unit.

    Args:
        times: One per row, float64.
        unit: Name of the unit, such as ``10min``.
    """

    times: Tensor
    unit: str


@dataclass(frozen=True)
class PanelTable:
    """A panel: values of ``n`` arms at ``T`` times.

    Args:
        axis: The times.
        values: ``T x n``; NaN where there is no reading.
        arms: Names of the arms.
    """

    axis: TimeAxis
    values: Tensor
    arms: list[str]


@dataclass(frozen=True)
class LogTable:
    """A long log: one row per observation.

    Args:
        axis: The times.
        actions: ``n x d``.
        Y: ``n x 1``.
        Yvar: ``n x 1``, or None.
    """

    axis: TimeAxis
    actions: Tensor
    Y: Tensor
    Yvar: Tensor | None

    @property
    def train_X(self) -> Tensor:
        """Rows ``[action | time]``."""
        return torch.cat([self.actions, self.axis.times.unsqueeze(-1)], dim=-1)


def read_panel(
    path: str | Path,
    resample: str | None = None,
    rows: str | None = None,
    time_unit: str | None = None,
    allow_gaps: bool = False,
) -> PanelTable:
    """Read a panel: first column a timestamp (or a number), every other column an arm.

    Args:
        path: A CSV file, or a compressed one such as ``.csv.gz``.
        resample: Average over steps of this length, such as ``10min``; needs timestamps.
        rows: ``a:b``, the rows used, counted from 0 after resampling.
        time_unit: Unit of time, such as ``1h``. Default: the resampling step, else the most
            frequent gap between timestamps. Numeric times are not converted; this is then the name
            of their unit.
        allow_gaps: Whether cells may be empty; their values are NaN. An arm without any reading is
            an error in any case.

    Raises:
        TableError: if the file, a column or a cell is not as expected; the message names it.
    """
    import pandas as pd
    from pandas.api.types import is_datetime64_any_dtype

    frame = read_csv(path)
    if frame.shape[1] < 2:
        raise TableError(
            f"Expected a time column and at least one arm in {path}. "
            f"Got columns {', '.join(map(str, frame.columns))}."
        )
    time_name, *arms = frame.columns
    times = _time_column(frame, time_name, path)
    values = frame[arms].apply(
        lambda column: numbers_of(column, path, allow_empty=allow_gaps or bool(resample))
    )
    values.index = pd.Index(times)
    if values.index.has_duplicates:
        repeated = values.index[values.index.duplicated()][0]
        raise TableError(f"Expected each time once in column '{time_name}'. Got {repeated} twice.")
    values = values.sort_index()
    if resample is not None:
        if not is_datetime64_any_dtype(values.index):
            raise TableError(
                f"Expected timestamps in column '{time_name}' to resample. "
                f"Got numbers, from {values.index[0]} to {values.index[-1]}."
            )
        values = values.resample(_timedelta("resample", resample)).mean()
    values = values.iloc[_row_range(rows, len(values))]
    _check_no_empty_arms(values)
    if not allow_gaps:
        _check_no_gaps(values)
    axis = _time_axis(values.index.to_series(), time_unit or resample)
    return PanelTable(axis, torch.tensor(values.to_numpy(dtype=float)), [str(a) for a in arms])


def read_log(
    path: str | Path,
    time: str,
    reward: str,
    actions: Sequence[str],
    reward_variance: str | None = None,
    rows: str | None = None,
    time_unit: str | None = None,
) -> LogTable:
    """Read a long log: one row per observation, columns by name.

    Args:
        path: A CSV file, or a compressed one such as ``.csv.gz``.
        time: Column of times, timestamps or numbers.
        reward: Column of rewards.
        actions: Columns of the action.
        reward_variance: Column of known noise variances, or None.
        rows: ``a:b``, the rows used, counted from 0.
        time_unit: Unit of time, such as ``1h``; default the most frequent gap between timestamps.
            Numeric times are not converted; this is then the name of their unit.

    Raises:
        TableError: if the file, a column or a cell is not as expected; the message names it.
    """
    frame = read_csv(path)
    if not actions:
        raise TableError("Expected at least one action column. Got none.")
    wanted = [time, reward, *actions, *([reward_variance] if reward_variance else [])]
    for name in wanted:
        if name not in frame.columns:
            raise TableError(
                f"Expected a column '{name}' in {path}. "
                f"Got columns {', '.join(map(str, frame.columns))}."
            )
    if len(set(wanted)) < len(wanted):
        raise TableError(f"Expected different columns for each role. Got {', '.join(wanted)}.")
    frame = frame.iloc[_row_range(rows, len(frame))]
    numbers = {name: numbers_of(frame[name], path) for name in wanted[1:]}

    def tensor(names: Sequence[str]) -> Tensor:
        return torch.tensor(np.stack([numbers[name].to_numpy(dtype=float) for name in names], -1))

    return LogTable(
        axis=_time_axis(_time_column(frame, time, path), time_unit),
        actions=tensor(actions),
        Y=tensor([reward]),
        Yvar=tensor([reward_variance]) if reward_variance else None,
    )


def _time_column(frame: pd.DataFrame, name: str, path: str | Path) -> pd.Series:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    column = frame[name]
    if is_numeric_dtype(column):
        return numbers_of(column, path)
    # Converted to UTC, since a log may contain a change of the clocks; times without an offset are
    # not converted.
    times = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True).dt.tz_convert(None)
    if times.isna().any():
        index = times.isna().idxmax()
        raise TableError(
            f"Expected timestamps like 2004-03-04 00:10:00, or numbers, in column '{name}' of "
            f"{path}. Got {column[index]!r} in {line_of(index)}."
        )
    return times


def _time_axis(times: pd.Series, unit: str | None) -> TimeAxis:
    from pandas.api.types import is_datetime64_any_dtype

    if not is_datetime64_any_dtype(times):
        column = f"1 ({times.name})" if isinstance(times.name, str) else "1"
        return TimeAxis(torch.tensor(times.to_numpy(dtype=float)), unit or column)
    if unit is None:
        gaps = times.drop_duplicates().sort_values().diff().dropna()
        if gaps.empty:
            raise TableError(f"Expected at least two times. Got {times.nunique()}.")
        unit = _short(gaps.mode().iloc[0])
    numbers = ((times - times.min()) / _timedelta("time unit", unit)).to_numpy(dtype=float)
    return TimeAxis(torch.tensor(numbers), unit)


def _short(gap: pd.Timedelta) -> str:
    """Format a gap in the largest unit that divides it, such as ``5min``."""
    for name, seconds in (("D", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count = gap.total_seconds() / seconds
        if count >= 1 and count == int(count):
            return f"{int(count)}{name}"
    return f"{gap.total_seconds():g}s"


def _timedelta(name: str, text: str) -> pd.Timedelta:
    import pandas as pd

    try:
        step = pd.Timedelta(text)
    except ValueError as error:
        raise TableError(f"Expected {name} like 10min or 1h. Got {text!r}.") from error
    if not any(character.isalpha() for character in text):
        # pandas would read a number without a unit as nanoseconds.
        raise TableError(f"Expected {name} like 10min or 1h. Got {text!r}, without a unit.")
    if not step > pd.Timedelta(0):
        raise TableError(f"Expected {name} longer than zero. Got {text!r}.")
    return step


def _row_range(text: str | None, length: int) -> slice:
    if text is None:
        return slice(None)
    try:
        start, stop = (int(part) if part else None for part in text.split(":"))
    except ValueError as error:
        raise TableError(f"Expected rows as a:b, such as 0:432. Got {text!r}.") from error
    chosen = slice(start, stop)
    if len(range(length)[chosen]) == 0:
        raise TableError(
            f"Expected rows among the {length} there are. Got {text!r}, which is none."
        )
    return chosen


def _check_no_empty_arms(values: pd.DataFrame) -> None:
    empty = values.columns[values.isna().all()]
    if len(empty):
        raise TableError(
            f"Expected a reading of every arm. Got none of arm '{empty[0]}' in {len(values)} rows; "
            "drop the arm, or choose other rows."
        )


def _check_no_gaps(values: pd.DataFrame) -> None:
    missing = values.isna()
    count = int(missing.to_numpy().sum())
    if count:
        row, arm = np.argwhere(missing.to_numpy())[0]
        raise TableError(
            "Expected a value for every arm at every time. "
            f"Got {count} empty cells of {missing.size}, the first for arm '{values.columns[arm]}' "
            f"at {values.index[row]}; resample to a longer step, choose rows, or drop the arm."
        )
