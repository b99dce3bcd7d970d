"""How workers say that an evaluation has begun, which executors do not."""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol


class Beginnings(Protocol):
    """What tells when evaluations have begun."""

    def mark(self, trial_id: int) -> Callable[[], None]:
        """Return what a worker calls when it begins with a trial."""

    def seen(self) -> Mapping[int, float]:
        """Return when each trial was begun last, on the clock ``time.perf_counter``, by its id."""

    def close(self) -> None:
        """Look no longer."""


class FileBeginnings:
    """Workers of this machine touch a file."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tvbo-")

    def mark(self, trial_id: int) -> Callable[[], None]:
        """Return what a worker calls when it begins with a trial."""
        return Path(self._folder.name, str(trial_id)).touch

    def seen(self) -> Mapping[int, float]:
        """Return when each trial was begun last, on the clock ``time.perf_counter``, by its id."""
        offset = time.perf_counter() - time.time()
        files = Path(self._folder.name).iterdir()
        return {int(file.name): file.stat().st_mtime + offset for file in files}

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()


class DaskBeginnings:
    """Workers of a Dask cluster log an event.

    Args:
        client: A ``distributed.Client``.
    """

    def __init__(self, client: Any):
        self._client = client
        self._topic = f"tvbo-{uuid.uuid4()}"
        self._seen: dict[int, float] = {}
        client.subscribe_topic(self._topic, self._note)

    def mark(self, trial_id: int) -> Callable[[], None]:
        """Return what a worker calls when it begins with a trial."""
        return partial(_log_event, self._topic, trial_id)

    def seen(self) -> Mapping[int, float]:
        """Return when each trial was begun last, on the clock ``time.perf_counter``, by its id."""
        return self._seen

    def close(self) -> None:
        """Be sent no further events."""
        if self._client.status == "running":
            self._client.unsubscribe_topic(self._topic)

    def _note(self, event: tuple[float, int]) -> None:
        self._seen[event[1]] = time.perf_counter()


def beginnings_of(executor: Executor) -> Beginnings | None:
    """Return what tells when the evaluations on an executor begin; None if nothing does."""
    if (client := dask_client(executor)) is not None:
        return DaskBeginnings(client)
    local = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)
    return FileBeginnings() if local else None


def dask_client(executor: Executor) -> Any | None:
    """Return the client of a Dask executor; None of others."""
    module = sys.modules.get("distributed.cfexecutor")
    is_dask = module is not None and isinstance(executor, module.ClientExecutor)
    return executor._client if is_dask else None  # type: ignore[attr-defined]


def _log_event(topic: str, trial_id: int) -> None:
    from distributed import get_worker

    get_worker().log_event(topic, trial_id)
