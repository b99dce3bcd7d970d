"""Ctrl-C that takes effect between two steps, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; a second one takes effect at once.

    Whatever handles SIGINT otherwise handles it then; by default it raises ``KeyboardInterrupt``.
    An exception of the block takes precedence. Outside the main thread, which alone is interrupted,
    and where SIGINT is ignored, nothing is deferred.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    deferred: list[tuple[int, FrameType | None]] = []

    def defer(number: int, frame: FrameType | None) -> None:
        deferred.append((number, frame))
        if len(deferred) > 1:
            deferred.clear()
            handler(number, frame)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if deferred:
        handler(*deferred[0])
