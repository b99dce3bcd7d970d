"""What makes a run survive its process: a journal behind every change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tvbo.optimizers.events import Event, Recorder

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


class Durable:
    """Keeps a journal of an optimizer, if asked to.

    The journal is read and written by :mod:`tvbo.journal`. A ``with`` closes it at its end. Copies
    of an optimizer, pickled ones too, keep no journal.
    """

    _recorder: Recorder | None = None

    def record(self, path: str | Path) -> None:
        """Start a journal: from now on every change is on disk before it takes effect.

        Args:
            path: A file that does not exist yet.

        Raises:
            tvbo.journal.JournalError: if the file exists, this optimizer keeps a journal already,
                or something in it cannot be pickled, such as a lambda.
        """
        from tvbo.journal import start_journal

        start_journal(self, path)

    @classmethod
    def open(
        cls, path: str | Path, *, like: Optimizer | None = None, read_only: bool = False
    ) -> Self:
        """Continue a journaled run: the same next suggestion, open trials still open.

        A journal holds pickled objects, which can run code: open only your own.

        Args:
            path: The journal.
            like: An optimizer made as the run's was; a journal of another problem is refused.
            read_only: Change nothing, and take what can be read of a damaged journal. The
                optimizer that comes back keeps no journal; ``record`` starts a new one.

        Warns:
            tvbo.journal.DamagedJournalWarning: if ``read_only`` and only a part could be read.

        Raises:
            tvbo.journal.JournalError: if the file is no journal, is damaged, is of another problem
                or version, is in use, of an optimizer that is none of this class, or what is
                replayed differs from what was recorded.
        """
        from tvbo.journal import JournalError, open_journal

        optimizer = open_journal(path, like=like, read_only=read_only)
        if not isinstance(optimizer, cls):
            optimizer.close()
            raise JournalError(
                f"Expected a journal of a {cls.__name__}. Got {path}, of a "
                f"{type(optimizer).__name__}: open it by Optimizer.open."
            )
        return optimizer

    def close(self) -> None:
        """Let go of the journal, if there is one; this optimizer can then change no more."""
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        # A file that is open here only.
        state.pop("_recorder", None)
        return state

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Around what may change memory before anything is recorded."""
        if self._recorder is None:
            yield
            return
        self._recorder.check()
        try:
            yield
        except BaseException as error:
            self._recorder.spoil(f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def _recorded(self, *events: Event) -> Iterator[None]:
        """Around what makes events take effect."""
        if self._recorder is None:
            yield
            return
        with self._recorder.entry(*events):
            yield
