"""What makes a run survive its process: a journal behind every change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from threading import RLock, current_thread
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from tvbo.optimizers.events import Event, Recorder

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


ONE_AT_A_TIME = (
    "ask",
    "attach",
    "tell",
    "fail",
    "expire",
    "expire_overdue",
    "recommend",
    "policy",
    "preview",
    "record",
    "close",
)
"""Methods of an optimizer that no two threads may be in at a time."""


class CallGuard:
    """Says who is calling an optimizer; one thread at a time, which may call again from within."""

    def __init__(self):
        self._lock = RLock()
        self._held_by = ""

    @contextmanager
    def enter(self, call: str) -> Iterator[None]:
        """Around a call.

        Raises:
            RuntimeError: if another thread is in one; it is not waited for.
        """
        thread = current_thread().name
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"Expected one call at a time. Got {call} from {thread} while "
                f"{self._held_by or 'another call'} is under way: call an optimizer from one "
                "thread, or from several in turn."
            )
        before, self._held_by = self._held_by, f"{call} from {thread}"
        try:
            yield
        finally:
            self._held_by = before
            self._lock.release()


def one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer that refuses to run while another thread is in one."""

    @wraps(method)
    def guarded(self: Durable, *arguments: Any, **given: Any) -> Any:
        with self._call_guard.enter(method.__name__):
            return method(self, *arguments, **given)

    return guarded


class Durable:
    """Keeps a journal of an optimizer, if asked to; lets one thread at a time call it.

    The journal is read and written by :mod:`tvbo.journal`. A ``with`` closes it at its end. Copies
    of an optimizer, pickled ones too, keep no journal.
    """

    _recorder: Recorder | None = None
    _call_guard: CallGuard

    def __new__(cls, *_: object, **__: object) -> Self:
        """Each optimizer, copied and unpickled ones too, has a guard of its own."""
        made = super().__new__(cls)
        made._call_guard = CallGuard()
        return made

    def __init_subclass__(cls, **given: Any):
        """Whatever a subclass makes of these methods, one thread at a time is in them."""
        super().__init_subclass__(**given)
        for name in ONE_AT_A_TIME:
            if name in cls.__dict__:
                setattr(cls, name, one_at_a_time(cls.__dict__[name]))

    @one_at_a_time
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
        cls,
        path: str | Path,
        *,
        like: Optimizer | None = None,
        read_only: bool = False,
        progress: bool = True,
    ) -> Self:
        """Continue a journaled run: the same next suggestion, open trials still open.

        Without ``like``, the pickled optimizer in the journal is loaded, which trusts the file: it
        can run any code. Open only your own so. With ``like`` nothing is unpickled.

        Args:
            path: The journal.
            like: An optimizer made as the run's was. What the run was made with is compared with
                it; a journal of another problem, other settings or another seed is refused. It is
                left as it is: a copy goes on.
            read_only: Change nothing, and take what can be read of a damaged journal. The
                optimizer that comes back keeps no journal; ``record`` starts a new one.
            progress: Show a progress bar on stderr where the run is replayed and that takes longer
                than some seconds.

        Warns:
            tvbo.journal.DamagedJournalWarning: if ``read_only`` and only a part could be read.

        Raises:
            tvbo.journal.JournalError: if the file is no journal, is damaged, is of another problem
                or version, is in use, of an optimizer that is none of this class, or what is
                replayed differs from what was recorded.
        """
        from tvbo.journal import JournalError, open_journal

        optimizer = open_journal(path, like, read_only, progress)
        if not isinstance(optimizer, cls):
            optimizer.close()
            raise JournalError(
                f"Expected a journal of a {cls.__name__}. Got {path}, of a "
                f"{type(optimizer).__name__}: open it by Optimizer.open."
            )
        return optimizer

    @one_at_a_time
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
        # A file that is open here only, and a lock.
        state.pop("_recorder", None)
        state.pop("_call_guard", None)
        return state

    def _agreed(self, X: Tensor) -> Tensor:
        """The action to take where ``X`` was chosen: in a replay, that which was recorded."""
        return X if self._recorder is None else self._recorder.agreed(X)

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
