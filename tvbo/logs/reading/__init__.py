"""Logs and panels read from CSV or Parquet files, with errors that name the cell."""

from tvbo.logs.reading.files import TableError, read_table
from tvbo.logs.reading.log import read_log, read_panel

__all__ = ["TableError", "read_log", "read_panel", "read_table"]
