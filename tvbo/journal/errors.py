"""What can be wrong with a journal."""


class JournalError(ValueError):
    """A journal that cannot be started, read, replayed or written any further."""


class DamagedJournalWarning(UserWarning):
    """A journal of which only a part can be read."""


GO_ON = (
    "Optimizer.open(path, read_only=True) brings back the optimizer as far as that, and "
    ".record(new_path) goes on from there; `tvbo runs export` saves the trials as CSV."
)
"""What to do about a damaged journal."""
