"""Logs and panels read from CSV files, with errors that name the cell."""

from tvbo.tables.log import (
    UNREADABLE,
    LogTable,
    TableError,
    TimeAxis,
    line_of,
    numbers_of,
    read_csv,
    read_log,
)
from tvbo.tables.panel import PanelTable, read_panel

__all__ = [
    "UNREADABLE",
    "LogTable",
    "PanelTable",
    "TableError",
    "TimeAxis",
    "line_of",
    "numbers_of",
    "read_csv",
    "read_log",
    "read_panel",
]
