"""Evaluations by the workers of an executor: threads, processes, a cluster."""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

from tvbo.evaluation.beginnings import beginnings_of, dask_client
from tvbo.evaluation.executors import Evaluation
from tvbo.evaluation.objective import TrialFunction, evaluate_by_worker
from tvbo.optimizers import Trial

LOOKS = 20
"""Number of times within a ``timeout`` to look which evaluations have begun."""

SILENCE = 10.0
"""Seconds without a sign of life after which a cluster is asked whether it has workers."""


class WorkerExecutor:
    """Evaluate on an executor of :mod:`concurrent.futures`, ``max_pending`` trials at a time.

    A slot is taken from submitting a trial until its evaluation ends, even if it ends too late: an
    evaluation that has begun cannot be stopped from here, and if its slot were given away, the next
    trial would wait behind it.

    Args:
        executor: Evaluates.
        function: The objective.
        max_pending: Number of slots.
        timeout: Seconds from its beginning until an evaluation is overdue; None waits for ever.
        isolates_errors: Whether an evaluation that goes wrong fails its trial.

    Raises:
        TypeError: if ``executor`` is none, or ``function`` cannot be sent to its processes.
    """

    def __init__(
        self,
        executor: Executor,
        function: TrialFunction,
        max_pending: int,
        timeout: float | None = None,
        isolates_errors: bool = True,
    ):
        if not isinstance(executor, Executor):
            raise TypeError(
                "Expected an executor of concurrent.futures; that of a Dask client is "
                f"client.get_executor(pure=False). Got {type(executor).__name__}."
            )
        if isinstance(executor, ProcessPoolExecutor):
            _check_pickles(function)
        self.max_pending = max_pending
        self.isolates_errors = isolates_errors
        self._executor = executor
        self._function = function
        self._timeout = timeout
        self._client = dask_client(executor)
        self._beginnings = None if timeout is None else beginnings_of(executor)
        self._awaited: dict[int, Evaluation] = {}
        self._abandoned: dict[int, Evaluation] = {}
        self._newest_sign = time.perf_counter()
        self._is_silent = False
        # Not concurrent.futures.wait: it has no order, and takes a cancelled future for pending.
        self._ended: deque[Evaluation] = deque()
        self._has_ended = threading.Event()

    @property
    def room(self) -> int:
        """Number of slots that are free; that of an evaluation that has ended is."""
        return self.max_pending - len(self._awaited) - len(self._abandoned) + len(self._ended)

    @property
    def awaits(self) -> bool:
        """Whether there is an evaluation whose outcome is waited for."""
        return bool(self._awaited)

    def submit(self, trial: Trial) -> None:
        """Have a trial evaluated by a worker."""
        begun = None if self._beginnings is None else self._beginnings.mark(trial.id)
        # Bytes, since a tensor as it is would pass through shared memory of its own.
        future = self._executor.submit(
            evaluate_by_worker, self._function, pickle.dumps(trial), begun
        )
        evaluation = self._awaited[trial.id] = Evaluation(trial, future)
        if self._beginnings is None:
            evaluation.begun = evaluation.submitted
        self._newest_sign = evaluation.submitted
        future.add_done_callback(lambda _: self._note(evaluation))

    def wait(self) -> None:
        """Wait until an evaluation ends or is overdue, or it is time to look again."""
        self._has_ended.wait(self._patience())
        silent = time.perf_counter() - self._newest_sign >= SILENCE
        if self._client is not None and silent and not self._is_silent:
            warn_without_workers(self._client)
        self._is_silent = silent

    def completed(self, t: float | None) -> Iterator[Evaluation]:
        """Yield the evaluations that ended in time, then those that are overdue.

        Raises:
            TimeoutError: if nothing goes on: evaluations hang in their workers, none is under way
                in its time, and for a whole ``timeout`` none has begun or ended, or become overdue.
        """
        self._has_ended.clear()
        while self._ended:
            evaluation = self._ended.popleft()
            if self._free(evaluation):
                yield evaluation
        if self._timeout is None:
            return
        begun = {} if self._beginnings is None else self._beginnings.seen(self._awaited)
        for trial_id, seconds in begun.items():
            evaluation = self._awaited[trial_id]
            # The clock of files is coarse.
            evaluation.begun = max(seconds, evaluation.submitted)
        self._newest_sign = max([self._newest_sign, *begun.values()])
        now = time.perf_counter()
        for evaluation in [*self._awaited.values()]:
            if evaluation.begun is not None and now - evaluation.begun >= self._timeout:
                trial_id = evaluation.trial.id
                self._abandoned[trial_id] = self._awaited.pop(trial_id)
                self._newest_sign = now
                evaluation.expired = f"no outcome within {self._timeout:g} s"
                yield evaluation
        if self._abandoned and (self._awaited or self.room <= 0):
            waits = all(each.begun is None for each in self._awaited.values())
            if waits and now - self._newest_sign >= self._timeout:
                raise TimeoutError(
                    f"Expected an evaluation to end within {self._timeout:g} s. Got "
                    f"{len(self._abandoned)} that hang in their workers: those of trials "
                    f"{list(self._abandoned)}, which expired. All others stay open; run_async with "
                    "the same optimizer and another executor begins with them."
                )

    def withdraw(self) -> list[Evaluation]:
        """Cancel what has not begun, and return all evaluations that are still waited for."""
        withdrawn = list(self._awaited.values())
        for evaluation in withdrawn:
            evaluation.future.cancel()
        self._awaited.clear()
        if self._beginnings is not None:
            self._beginnings.close()
        return withdrawn

    def _note(self, evaluation: Evaluation) -> None:
        """Note in any thread that an evaluation has ended."""
        evaluation.ended = time.perf_counter()
        self._ended.append(evaluation)
        self._has_ended.set()

    def _free(self, evaluation: Evaluation) -> bool:
        """Give the slot of an evaluation back; return whether its outcome was waited for."""
        trial_id = evaluation.trial.id
        for held in (self._awaited, self._abandoned):
            if held.get(trial_id) is evaluation:
                del held[trial_id]
                self._newest_sign = time.perf_counter()
                return held is self._awaited
        return False

    def _patience(self) -> float | None:
        """Seconds until there is something to look at, if nothing ends."""
        waits = [] if self._client is None else [SILENCE]
        if self._timeout is not None:
            now = time.perf_counter()
            begun = [each.begun for each in self._awaited.values() if each.begun is not None]
            if begun:
                waits.append(min(begun) + self._timeout - now)
            elif self._abandoned:
                waits.append(self._newest_sign + self._timeout - now)
            if len(begun) < len(self._awaited):
                waits.append(self._timeout / LOOKS)
        return max(0.0, min(waits)) if waits else None


def warn_without_workers(client: Any) -> None:
    """Warn if a Dask cluster has no workers."""
    if not client.nthreads():
        warnings.warn(
            f"Expected a Dask cluster with workers. Got none at {client.scheduler.address}: "
            "evaluations wait until one comes.",
            stacklevel=2,
        )


def _check_pickles(function: TrialFunction) -> None:
    """Raise unless a function can be sent to other processes."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "Expected an objective that can be sent to other processes, such as a function of a "
            f"module. Got {function!r}: {error}."
        ) from error
