"""Runs that survive their process: every change is on disk before it takes effect."""

from tvbo.storage.create import start_journal
from tvbo.storage.database import DamagedJournalWarning, JournalBusyError, JournalError
from tvbo.storage.load import open_journal, restore_start
from tvbo.storage.reader import JournalReader
from tvbo.storage.trials import trials_of

__all__ = [
    "DamagedJournalWarning",
    "JournalBusyError",
    "JournalError",
    "JournalReader",
    "open_journal",
    "restore_start",
    "start_journal",
    "trials_of",
]
