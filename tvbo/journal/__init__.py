"""Runs that survive their process: every change is on disk before it takes effect."""

from tvbo.journal.create import start_journal
from tvbo.journal.database import DamagedJournalWarning, JournalError
from tvbo.journal.load import open_journal
from tvbo.journal.reader import JournalReader
from tvbo.journal.trials import trials_of

__all__ = [
    "DamagedJournalWarning",
    "JournalError",
    "JournalReader",
    "open_journal",
    "start_journal",
    "trials_of",
]
