"""The methods of an optimizer that record it, and the guard against two threads at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from threading import RLock, current_thread
from typing import Any, Self, cast

from torch import Tensor

from tvbo.optimizers.listener import Listener
from tvbo.storage import JournalError, open_journal, start_journal
from tvbo.storage.recorded import Event, EventSink
from tvbo.trial import Trial

ONE_AT_A_TIME = (
    "ask",
    "attach",
    "attach_frame",
    "tell",
    "tell_frame",
    "fail",
    "expire",
    "expire_overdue",
    "recommend",
    "front",
    "policy",
    "preview",
    "record",
    "close",
)
"""Methods of an optimizer that two threads may not run at a time."""


logger = logging.getLogger("tvbo.optimizers")


class CallGuard:
    """Lets one thread at a time call an optimizer, also again from within a call."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._held_by = ""

    @contextmanager
    def enter(self, call: str) -> Iterator[None]:
        """Return a context manager for the time of a call.

        Args:
            call: Name of the method, for the error of another thread.

        Raises:
            RuntimeError: if another thread is in a call.
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
    """Make a method raise ``RuntimeError`` while another thread is in a call of the optimizer."""

    @wraps(method)
    def guarded(self: JournalMixin, *arguments: Any, **given: Any) -> Any:
        with self._call_guard.enter(method.__name__):
            return method(self, *arguments, **given)

    return guarded


class JournalMixin:
    """Records an optimizer in a journal, if asked to; lets one thread at a time call it.

    The journal is read and written by :mod:`tvbo.storage`. As a context manager, the optimizer
    closes it. Copies of an optimizer, pickled ones too, are not recorded.
    """

    _event_sink: EventSink | None = None
    _call_guard: CallGuard
    _listeners: tuple[Listener, ...] = ()
    _unannounced: list[Event] | None = None
    _is_inner: bool = False
    """Whether another optimizer announces its changes."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Give each optimizer, copied and unpickled ones too, a guard of its own."""
        optimizer = super().__new__(cls)
        optimizer._call_guard = CallGuard()
        return optimizer

    def __init_subclass__(cls, **given: Any):
        """Guard the methods that a subclass overrides, too."""
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
            tvbo.storage.JournalError: if the file exists, this optimizer is recorded already, or
                something in it cannot be pickled, such as a lambda.
        """
        # The journal records what the base of all optimizers has.
        start_journal(cast("Any", self), path)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        like: Self | None = None,
        read_only: bool = False,
        progress: bool = True,
        wait: float = 0.0,
    ) -> Self:
        """Continue a journaled run: the same next suggestion, open trials still open.

        Without ``like``, the pickled optimizer in the journal is loaded, which can run any code:
        open only your own files this way. With ``like`` nothing is unpickled.

        Args:
            path: The journal.
            like: An optimizer with the run's settings. A journal of another problem, other
                settings or another seed is refused. ``like`` is copied, not modified.
            read_only: Write nothing, and return what can be read of a damaged journal. The
                optimizer is not recorded; ``record`` starts a new journal.
            progress: Show a progress bar on stderr where a replay takes longer than some seconds.
            wait: Seconds to wait for another process that has it open for writing.

        Warns:
            tvbo.storage.DamagedJournalWarning: if ``read_only`` and only a part could be read.

        Raises:
            tvbo.storage.JournalError: if the file is no journal, is damaged, is of another problem,
                class or version, is in use, or a replayed choice differs from the recorded one.
        """
        optimizer = open_journal(path, cast("Any", like), read_only, progress, wait)
        if not isinstance(optimizer, cls):
            optimizer.close()
            raise JournalError(
                f"Expected a journal of a {cls.__name__}. Got {path}, of a "
                f"{type(optimizer).__name__}: open it by Optimizer.open."
            )
        return optimizer

    def add_listener(
        self,
        on_ask: Callable[[Trial], object] | None = None,
        on_tell: Callable[[Trial, Any], object] | None = None,
        on_fit: Callable[[dict[str, list[float]]], object] | None = None,
        on_loss: Callable[[Trial, str], object] | None = None,
    ) -> None:
        """Have functions called after each change, when it has taken effect and is on disk.

        What they raise is logged as an error, and stops nothing. Copies of the optimizer, and one
        opened from its journal, have no listeners. Each change is also logged to
        ``"tvbo.optimizers"``, a line at level INFO.

        Args:
            on_ask: Called with each trial asked for.
            on_tell: Called with a trial and its outcome, a number, or several by name.
            on_fit: Called with the hyperparameters learned at a refit: values by name, as the
                model holds them; of several outcomes once for each, with its name before theirs.
            on_loss: Called with a trial that failed or expired, and the reason.

        Raises:
            TypeError: if one of them is no function.
        """
        listener = Listener(on_ask, on_tell, on_fit, on_loss)
        for name, given in vars(listener).items():
            if given is not None and not callable(given):
                raise TypeError(f"Expected a function for {name}. Got {given!r}.")
        self._listeners += (listener,)

    @one_at_a_time
    def close(self) -> None:
        """Close the journal, if there is one; this optimizer can then change no more."""
        if self._event_sink is not None:
            self._event_sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        # An open file, and a lock of this process.
        state.pop("_event_sink", None)
        state.pop("_call_guard", None)
        # They belong to this process.
        state.pop("_listeners", None)
        state.pop("_unannounced", None)
        state.pop("_takes_numbers", None)
        return state

    def _reconciled(self, X: Tensor) -> Tensor:
        """Return the action to take where ``X`` was chosen: in a replay, the recorded one."""
        return X if self._event_sink is None else self._event_sink.reconcile(X)

    @contextmanager
    def _invalidated_on_error(self) -> Iterator[None]:
        """Invalidate the journal if the body raises, which may have drawn random numbers."""
        if self._event_sink is None:
            yield
            return
        self._event_sink.check()
        try:
            yield
        except BaseException as error:
            self._event_sink.invalidate(f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def _in_one_transaction(self) -> Iterator[None]:
        """Return a context manager in which several calls are recorded together or not at all."""
        self._unannounced = []
        try:
            with nullcontext() if self._event_sink is None else self._event_sink.together():
                yield
        except BaseException:
            self._unannounced = None
            raise
        events, self._unannounced = self._unannounced, None
        self._announce(*events)

    @contextmanager
    def _recorded(self, *events: Event) -> Iterator[None]:
        """Record events, which the body makes take effect, and announce them."""
        sink = self._event_sink
        with nullcontext() if sink is None else sink.transaction(*events):
            yield
        if self._unannounced is None:
            self._announce(*events)
        else:
            self._unannounced += events

    def _announce(self, *events: Event) -> None:
        """Log events that have taken effect, and call the listeners."""
        for event in () if self._is_inner else events:
            if logger.isEnabledFor(logging.INFO):
                logger.info("%s", event)
            for listener in self._listeners:
                try:
                    listener(event)
                except Exception:  # Any error: the change has been made.
                    logger.exception("A listener failed. The change stands: %s", event)
