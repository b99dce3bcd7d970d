"""Evaluations by the workers of an executor: threads, processes, a cluster."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

from tvbo.evaluation.executors import Evaluation
from tvbo.evaluation.objective import TrialFunction, evaluate
from tvbo.optimizers import Trial


class WorkerExecutor:
    """Evaluate on an executor of :mod:`concurrent.futures`, ``max_pending`` trials at a time.

    A slot is taken from submitting a trial until its evaluation ends, even if it ends too late: an
    evaluation that has begun cannot be stopped from here, and if its slot were given away, the next
    trial would wait behind it and might expire without having begun.

    Args:
        executor: Evaluates.
        function: The objective.
        max_pending: Number of slots.
        timeout: Seconds from submitting until an evaluation is overdue; None waits for ever.

    Raises:
        TypeError: if ``executor`` is none, or ``function`` cannot be sent to its processes.
    """

    isolates_errors = True

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
        self._timeout = timeout
        self._awaited: dict[int, Evaluation] = {}
        self._abandoned: dict[int, Evaluation] = {}
        self._newest_sign = time.perf_counter()
        # Not concurrent.futures.wait: it has no order, and takes a cancelled future for pending.
        self._ended: deque[Evaluation] = deque()
        self._has_ended = threading.Event()

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return len(self._awaited) + len(self._abandoned) < self.max_pending

    @property
    def awaits(self) -> bool:
        """Whether there is an evaluation whose outcome is waited for."""
        return bool(self._awaited)

    def submit(self, trial: Trial) -> None:
        """Have a trial evaluated by a worker."""
        # Bytes, since a tensor as it is would pass through shared memory of its own.
        future = self._executor.submit(evaluate, self._function, pickle.dumps(trial))
        evaluation = self._awaited[trial.id] = Evaluation(trial, future)
        future.add_done_callback(lambda _: self._note(evaluation))

    def wait(self) -> None:
        """Wait until an evaluation ends or is overdue."""
        self._has_ended.wait(self._patience())

    def completed(self, t: float | None) -> Iterator[Evaluation]:
        """Yield the evaluations that ended in time, then those that are overdue.

        Raises:
            TimeoutError: if nothing goes on: every slot is taken by an evaluation that is overdue,
                or the next in turn cannot begin behind those, and for a whole ``timeout`` none
                has ended, nor become overdue.
        """
        self._has_ended.clear()
        while self._ended:
            evaluation = self._ended.popleft()
            if self._free(evaluation):
                yield evaluation
        while self._timeout is not None and self._patience() == 0:
            if not self._awaited:
                if self.has_room:
                    return
                raise self._stuck()
            evaluation = next(iter(self._awaited.values()))
            begun = not evaluation.future.cancel()
            if not begun and self._abandoned and self._newest_sign < evaluation.submitted:
                raise self._stuck()
            del self._awaited[evaluation.trial.id]
            if begun:
                self._abandoned[evaluation.trial.id] = evaluation
                self._newest_sign = time.perf_counter()
            evaluation.expired = f"no outcome within {self._timeout:g} s"
            yield evaluation

    def withdraw(self) -> list[Evaluation]:
        """Cancel what has not begun, and return all evaluations that are still waited for."""
        withdrawn = list(self._awaited.values())
        for evaluation in withdrawn:
            evaluation.future.cancel()
        self._awaited.clear()
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
        """Seconds until the first evaluation is overdue; without one, until nothing goes on."""
        if self._timeout is None:
            return None
        since = next((e.submitted for e in self._awaited.values()), self._newest_sign)
        return max(0.0, since + self._timeout - time.perf_counter())

    def _stuck(self) -> TimeoutError:
        return TimeoutError(
            f"Expected an evaluation to end within {self._timeout:g} s. Got "
            f"{len(self._abandoned)} that hang in their workers: those of trials "
            f"{list(self._abandoned)}, which expired. All others stay open; run_async with the "
            "same optimizer and another executor begins with them."
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
