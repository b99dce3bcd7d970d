"""Evaluations by the workers of an executor: threads, processes, a cluster."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tvbo.evaluation.objective import (
    EvaluationError,
    Outcome,
    TrialFunction,
    evaluate_by_worker,
    type_and_text,
)
from tvbo.optimizers import Trial

LOOKS_PER_TIMEOUT = 20
"""Number of times within a ``timeout`` to look which evaluations have begun."""

MAX_RESULTS_LOST = 3
"""Number of times that a trial is submitted again since Dask lost its result on the way here."""

SILENCE_SECONDS = 10.0
"""Seconds without a sign of life after which a cluster is asked whether it has workers."""


@dataclass(eq=False)
class Evaluation:
    """A trial that was submitted; times are on the clock ``time.perf_counter``.

    Args:
        trial: The trial, with the context of its round.
        future: Done once the evaluation has ended.
        submitted: When it was submitted.
        begun: When its evaluation was seen to have begun, if it has.
        ended: When its evaluation ended, if it has.
        is_overdue: Whether it took longer than the ``timeout``.
    """

    trial: Trial
    future: Future[Any]
    submitted: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    ended: float | None = None
    is_overdue: bool = False

    @property
    def seconds(self) -> float:
        """Time from submitting to the result, or until now."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.submitted

    @property
    def is_done(self) -> bool:
        """Whether its outcome, or its error, has come."""
        return self.future.done() and not self.future.cancelled()

    def outcome(self) -> Outcome:
        """Return the outcome, once the future is done.

        Raises:
            EvaluationError: if the evaluation raised.
            BrokenExecutor: if the trial was not evaluated, through no fault of its own.
            KeyboardInterrupt: if the worker was interrupted.
        """
        if self.future.cancelled():
            raise BrokenExecutor("an evaluation was cancelled there.")
        error = self.future.exception()
        if error is None:
            returned: Outcome | BaseException = self.future.result()
            if isinstance(returned, BaseException):
                raise returned
            return returned
        if isinstance(error, (BrokenExecutor, KeyboardInterrupt)):
            raise error
        if type(error).__name__ == "KilledWorker":
            # Of Dask: this trial has killed several workers.
            raise EvaluationError(type_and_text(error)) from error
        # What the objective raises does not come this way.
        raise BrokenExecutor(f"{type_and_text(error)}.") from error


class Workers:
    """Slots of an executor of :mod:`concurrent.futures`, ``max_pending`` of them.

    A slot is taken from submitting a trial until its evaluation ends, even if it ends too late: an
    evaluation that has begun cannot be stopped from here, and if its slot were given away, the next
    trial would wait behind it.

    Args:
        executor: Evaluates.
        function: The objective.
        max_pending: Number of slots.
        timeout: Seconds from its beginning until an evaluation is overdue; None waits for ever.

    Raises:
        TypeError: if ``executor`` is none, or ``function`` cannot be sent to its processes.
    """

    def __init__(
        self,
        executor: Executor,
        function: TrialFunction,
        max_pending: int,
        timeout: float | None = None,
    ):
        if not isinstance(executor, Executor):
            raise TypeError(
                "Expected an executor of concurrent.futures; that of a Dask client is "
                f"client.get_executor(pure=False). Got {type(executor).__name__}."
            )
        if isinstance(executor, ProcessPoolExecutor):
            _check_pickles(function)
        self.max_pending = max_pending
        self._executor = executor
        self._function = function
        self.timeout = timeout
        self._client = _dask_client(executor)
        self._beginnings: _FileBeginnings | _DaskBeginnings | None = None
        if timeout is not None and self._client is not None:
            self._beginnings = _DaskBeginnings(self._client)
        elif timeout is not None and isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor):
            self._beginnings = _FileBeginnings()
        self._awaited: dict[int, Evaluation] = {}
        self._abandoned: dict[int, Evaluation] = {}
        self._newest_sign = time.perf_counter()
        self._is_silent = False
        # Not concurrent.futures.wait: it has no order, and takes a cancelled future for pending.
        self._ended: deque[Evaluation] = deque()
        self._results_lost: Counter[int] = Counter()
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
        silent = time.perf_counter() - self._newest_sign >= SILENCE_SECONDS
        client = self._client
        if client is not None and silent and not self._is_silent and not client.nthreads():
            warnings.warn(
                f"Expected a Dask cluster with workers. Got none at {client.scheduler.address}: "
                "evaluations wait until one comes.",
                stacklevel=2,
            )
        self._is_silent = silent

    def completed(self) -> Iterator[Evaluation]:
        """Yield the evaluations that ended in time, then those that are overdue.

        Raises:
            TimeoutError: if nothing goes on: evaluations hang in their workers, none is under way
                in its time, and for a whole ``timeout`` none has begun or ended, or become overdue.
        """
        self._has_ended.clear()
        while self._ended:
            evaluation = self._ended.popleft()
            if self._free(evaluation):
                if self._is_result_lost(evaluation):
                    self.submit(evaluation.trial)
                else:
                    yield evaluation
        if self.timeout is None:
            return
        begun = {} if self._beginnings is None else self._beginnings.seen(self._awaited)
        for trial_id, seconds in begun.items():
            evaluation = self._awaited[trial_id]
            # The clock of files is coarse.
            evaluation.begun = max(seconds, evaluation.submitted)
        self._newest_sign = max([self._newest_sign, *begun.values()])
        now = time.perf_counter()
        for trial_id, evaluation in [*self._awaited.items()]:
            if evaluation.begun is not None and now - evaluation.begun >= self.timeout:
                self._abandoned[trial_id] = self._awaited.pop(trial_id)
                self._newest_sign = now
                evaluation.is_overdue = True
                yield evaluation
        if self._abandoned and (self._awaited or self.room <= 0):
            waits = all(each.begun is None for each in self._awaited.values())
            if waits and now - self._newest_sign >= self.timeout:
                raise TimeoutError(
                    f"Expected an evaluation to end within {self.timeout:g} s. Got "
                    f"{len(self._abandoned)} that hang in their workers: those of trials "
                    f"{sorted(self._abandoned)}, which expired. All others stay open; run_async "
                    "with the same optimizer and another executor begins with them."
                )

    def close(self) -> list[Evaluation]:
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

    def _is_result_lost(self, evaluation: Evaluation) -> bool:
        """Return whether Dask lost a result, and the trial is to be submitted again.

        A worker may die between computing a result and sending it. If that happens while Dask
        fetches the result, its executor takes the result for an error, and raises a ValueError.
        """
        future = evaluation.future
        if self._client is None or future.cancelled() or type(future.exception()) is not ValueError:
            return False
        self._results_lost[evaluation.trial.id] += 1
        return self._results_lost[evaluation.trial.id] <= MAX_RESULTS_LOST

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
        """Return the seconds until there is something to look at, if nothing ends."""
        waits = [] if self._client is None else [SILENCE_SECONDS]
        if self.timeout is not None:
            now = time.perf_counter()
            begun = [each.begun for each in self._awaited.values() if each.begun is not None]
            if begun:
                waits.append(min(begun) + self.timeout - now)
            elif self._abandoned:
                waits.append(self._newest_sign + self.timeout - now)
            if len(begun) < len(self._awaited):
                waits.append(self.timeout / LOOKS_PER_TIMEOUT)
        return max(0.0, min(waits)) if waits else None


class _FileBeginnings:
    """When evaluations began: workers of this machine touch a file."""

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


class _DaskBeginnings:
    """When evaluations began: workers of a Dask cluster log an event."""

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


def _log_event(topic: str, trial_id: int) -> None:
    from distributed import get_worker

    get_worker().log_event(topic, trial_id)


def _dask_client(executor: Executor) -> Any | None:
    """Return the client of a Dask executor; None of others."""
    module = sys.modules.get("distributed.cfexecutor")
    is_dask = module is not None and isinstance(executor, module.ClientExecutor)
    return executor._client if is_dask else None  # type: ignore[attr-defined]


def _check_pickles(function: TrialFunction) -> None:
    """Raise unless a function can be sent to other processes."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "Expected an objective that can be sent to other processes, such as a function of a "
            f"module. Got {function!r}: {error}."
        ) from error
