"""Panels read from files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
from torch import Tensor

from tvbo.logs.reading.files import CsvOptions, TableError, read_table
from tvbo.logs.reading.log import (
    TimeAxis,
    numbers_of,
    row_range,
    time_axis,
    time_column,
)
from tvbo.spaces.times import parse_timedelta

if TYPE_CHECKING:
    pass


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
    allow_gaps: bool = False,
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
        allow_gaps: Whether cells may be empty; their values are NaN. An arm without any reading is
            an error in any case; a row without any is left out.
        **csv: How a CSV file is written, as of :class:`CsvOptions`.

    Raises:
        TableError: if the file, a column or a cell is not as expected; the message names it.
    """
    import pandas as pd
    from pandas.api.types import is_datetime64_any_dtype

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
        values = values.resample(parse_timedelta("resample", resample)).mean()
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
    missing = values.isna()
    empty = values.columns[missing.all()]
    if len(empty):
        raise TableError(
            f"Expected a reading of every arm. Got none of arm '{empty[0]}' in {len(values)} rows; "
            "drop the arm, or choose other rows."
        )
    cells = np.argwhere(missing.to_numpy())
    if len(cells) and not allow_gaps:
        row, arm = cells[0]
        raise TableError(
            "Expected a value for every arm at every time. "
            f"Got {len(cells)} empty cells of {missing.size}, the first for arm "
            f"'{values.columns[arm]}' at {values.index[row]}; --drop-missing leaves such times "
            "out; or resample to a longer step, or drop the arm."
        )
    axis = time_axis(values.index.to_series(), time_unit or resample)
    readings = torch.tensor(values.to_numpy(dtype=float))
    return PanelTable(axis, readings, [str(arm) for arm in arms], num_dropped)
