"""Runs that survive their process: every change is on disk before it takes effect."""

from tvbo.journal.create import start_journal
from tvbo.journal.database import DamagedJournalWarning, JournalBusyError, JournalError
from tvbo.journal.load import open_journal, restore_start
from tvbo.journal.reader import JournalReader
from tvbo.journal.trials import trials_of

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
