"""How workers say that an evaluation has begun, which executors do not."""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol


class Beginnings(Protocol):
    """What tells when evaluations have begun."""

    def mark(self, trial_id: int) -> Callable[[], None]:
        """Return what a worker calls when it begins with a trial."""

    def seen(self, trial_ids: Iterable[int]) -> Mapping[int, float]:
        """Return when trials were begun last, if they were, on the clock ``time.perf_counter``."""

    def close(self) -> None:
        """Look no longer."""


class FileBeginnings:
    """Workers of this machine touch a file."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tvbo-", ignore_cleanup_errors=True)

    def mark(self, trial_id: int) -> Callable[[], None]:
        """Return what a worker calls when it begins with a trial."""
        return Path(self._folder.name, str(trial_id)).touch

    def seen(self, trial_ids: Iterable[int]) -> Mapping[int, float]:
        """Return when trials were begun last, if they were, on the clock ``time.perf_counter``."""
        offset = time.perf_counter() - time.time()
        files = {trial_id: Path(self._folder.name, str(trial_id)) for trial_id in trial_ids}
        return {i: file.stat().st_mtime + offset for i, file in files.items() if file.exists()}

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

    def seen(self, trial_ids: Iterable[int]) -> Mapping[int, float]:
        """Return when trials were begun last, if they were, on the clock ``time.perf_counter``."""
        return {i: self._seen[i] for i in trial_ids if i in self._seen}

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
