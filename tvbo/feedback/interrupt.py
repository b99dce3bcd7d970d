"""Ctrl-C that takes effect between two steps, never in the midst of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class HeldInterrupt:
    """Holds an interrupt back until it may take effect.

    Whatever handles SIGINT otherwise does so later; by default it raises ``KeyboardInterrupt``. A
    second one, while the first is held, does not wait. Outside the main thread, which alone is
    interrupted, this does nothing.

    Args:
        wake: Called when there is one, in the midst of anything: it must be reentrant.
    """

    def __init__(self, wake: Callable[[], None]):
        self._wake = wake
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._held: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> HeldInterrupt:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            # Not where it is ignored, or ends the process without a word.
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if exc_type is None:
            self.take_effect()

    def take_effect(self) -> None:
        """Handle an interrupt that is held, if there is one."""
        held, self._held = self._held, None
        if held is not None and self._handler is not None:
            self._handler(*held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        again = self._held is not None
        self._held = number, frame
        if again:
            self.take_effect()
        else:
            self._wake()
