"""A run that survives its process: every change on disk before it takes effect."""

from tvbo.journal.errors import DamagedJournalWarning, JournalError
from tvbo.journal.opening import open_journal, start_journal
from tvbo.journal.reading import JournalReader
from tvbo.journal.trials import trials_of

__all__ = [
    "DamagedJournalWarning",
    "JournalError",
    "JournalReader",
    "open_journal",
    "start_journal",
    "trials_of",
]
