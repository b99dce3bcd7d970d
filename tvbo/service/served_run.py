"""A run that a server holds open: one call at a time, the next action chosen meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import Any

from tvbo.optimizers import Optimizer
from tvbo.service import page
from tvbo.service.calls import Values, time_of
from tvbo.storage import RunBusyError, StorageError, read_run

logger = logging.getLogger("tvbo.service")

QUIET = 0.01
"""Seconds without a call after which the next action is chosen, so that calls come first."""

VALID_UNITS, VALID_TIME = 0.01, timedelta(minutes=1)
"""Units of time, and the time, for which an action chosen ahead is asked for, whichever is less."""

MAX_SHARE = 0.02
"""Share of the time that goes into choosing again, while nothing is asked, what is too old."""

REFRESH = 30
"""Seconds after which a page is shown again."""


class ServedRun:
    """A run that is held open, with its models in memory.

    Args:
        name: What it is called in the address.
        url: The file, or the URL of the database.
        like: As of ``Optimizer.open``.
        wait: Seconds that a call waits for others, or for a database that is away.

    Attributes:
        optimizer: Its optimizer.

    Raises:
        tvbo.storage.StorageError: as ``Optimizer.open``.
    """

    def __init__(self, name: str, url: str, like: Optimizer | None = None, wait: float = 10.0):
        self.name, self.url, self.wait = name, url, wait
        self.optimizer = Optimizer.open(url, like=like, wait=wait)
        self._lock = Lock()
        self._page: tuple[int, float, str] = -1, 0.0, ""
        self._page_lock = Lock()
        self._has_changed, self._is_stopped = Event(), False
        self._thread = Thread(target=self._choose_ahead, name=f"ahead of {name}", daemon=True)

    def start(self) -> None:
        """Begin to choose actions ahead, where no context has to be known for it."""
        if self.optimizer.contexts is None:
            self._has_changed.set()
            self._thread.start()

    def stop(self) -> None:
        """Close the run when the calls under way have ended."""
        self._is_stopped = True
        self._has_changed.set()
        if self._thread.is_alive():
            self._thread.join()
        with self.turn() as optimizer:
            optimizer.close()

    @contextmanager
    def turn(self) -> Iterator[Optimizer]:
        """Yield the optimizer while no other call has it.

        Raises:
            RunBusyError: if others have it for longer than is waited.
        """
        if not self._lock.acquire(timeout=self.wait):
            raise RunBusyError(
                f"Expected {self.name} free within {self.wait:g} s. Got a run at which other "
                "requests to this server are at work."
            )
        try:
            yield self.optimizer
        finally:
            self._lock.release()

    def call(self, function: Callable[..., Values], changes: bool, **values: Any) -> Values:
        """Return what a function of :mod:`tvbo.service.calls` returns, in turn.

        Args:
            function: The function of the optimizer.
            changes: Whether it may change the run.
            **values: Its arguments.
        """
        try:
            with self.turn() as optimizer:
                return function(optimizer, **values)
        finally:
            if changes:
                self._has_changed.set()

    def counts(self) -> dict[str, int]:
        """Return the number of trials by state, of old where the run is busy or away."""
        with suppress(StorageError), self.turn() as optimizer:
            optimizer.refresh()
        log, num_open = self.optimizer.trial_log, len(self.optimizer.open_trials)
        counts = {"told": log.num_told, "failed": log.num_failed, "expired": log.num_expired}
        return {**counts, "open": num_open}

    def page(self) -> str:
        """Return its page, drawn again if the run has changed since, or for the time."""
        with self._page_lock:
            rows = read_run(self.url, self.wait)
            changes, made, text = self._page
            if changes != rows.run["changes"] or time.monotonic() - made > REFRESH / 2:
                with self.turn() as optimizer:
                    optimizer.refresh()
                    # It may take seconds to draw, while others ask.
                    optimizer = deepcopy(optimizer)
                text = page.run_page(self.name, rows, optimizer, REFRESH)
                self._page = rows.run["changes"], time.monotonic(), text
            return text

    def _choose_ahead(self) -> None:
        """Choose the next action whenever something has changed, and where time passes again."""
        pause = None
        while not self._is_stopped:
            self._has_changed.wait(pause)
            while self._has_changed.is_set() and not self._is_stopped:
                self._has_changed.clear()
                time.sleep(QUIET)
            pause = self._choose_next()

    def _choose_next(self) -> float | None:
        """Choose the next action; return the seconds after which it should be chosen again."""
        began, seconds = time.perf_counter(), None
        try:
            with self.turn() as optimizer:
                valid, scale = 0.0, optimizer.time_scale
                if scale is not None:
                    valid = min(VALID_UNITS, scale.to_span(VALID_TIME))
                    seconds = valid / scale.to_span(timedelta(seconds=1))
                choose = optimizer.prepare(time_of(optimizer, None), valid_for=valid)
            choose()
        except Exception as error:  # Any error: an ask would raise it, and says so then.
            logger.debug("%s: no action was chosen ahead: %s", self.name, error)
            return None
        took = time.perf_counter() - began
        return None if seconds is None else max(seconds / 2, took / MAX_SHARE)
