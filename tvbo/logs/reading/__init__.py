"""Logs and panels read from CSV or Parquet files, with errors that name the cell."""

from tvbo.logs.reading.files import (
    UNREADABLE,
    CsvOptions,
    TableError,
    line_of,
    read_csv,
    read_table,
)
from tvbo.logs.reading.log import LogTable, TimeAxis, numbers_of, read_log
from tvbo.logs.reading.panel import PanelTable, read_panel

__all__ = [
    "UNREADABLE",
    "CsvOptions",
    "LogTable",
    "PanelTable",
    "TableError",
    "TimeAxis",
    "line_of",
    "numbers_of",
    "read_csv",
    "read_log",
    "read_panel",
    "read_table",
]
