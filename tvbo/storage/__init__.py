"""Runs that survive their process: every change is on disk before it takes effect."""

from tvbo.storage.database import DamagedJournalWarning, JournalBusyError, JournalError
from tvbo.storage.reader import JournalReader, trials_of

__all__ = [
    "DamagedJournalWarning",
    "JournalBusyError",
    "JournalError",
    "JournalReader",
    "trials_of",
]
