"""Runs as rows of a database, which one process or several take further."""

from tvbo.storage.database import RunBusyError, StorageError, StorageUnavailableError
from tvbo.storage.rows import RunRows, read_run

__all__ = ["RunBusyError", "RunRows", "StorageError", "StorageUnavailableError", "read_run"]
