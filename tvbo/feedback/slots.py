"""Places for evaluations under way, those that nobody waits for any more included."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from tvbo.feedback.evaluation import ProblemFunction, submit
from tvbo.optimizers.trial import Trial


@dataclass(eq=False)
class Evaluation:
    """A trial that was submitted."""

    trial: Trial
    future: Future
    submitted: float
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """Time from submitting to the result, or until now."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.submitted


class Slots:
    """A slot is taken from submitting a trial until its evaluation ends, even if it ends too late.

    An evaluation that has begun cannot be stopped from here. If its slot were given away, the
    next trial would wait behind it, and might expire without having begun.

    Args:
        executor: Evaluates.
        problem_function: What it evaluates.
        size: Number of slots.
        timeout: Seconds from submitting until an evaluation is overdue; None waits for ever.
    """

    def __init__(
        self,
        executor: Executor,
        problem_function: ProblemFunction,
        size: int,
        timeout: float | None,
    ):
        self._executor = executor
        self._problem_function = problem_function
        self._size = size
        self._timeout = timeout
        self._awaited: dict[int, Evaluation] = {}
        self._abandoned: dict[int, Evaluation] = {}
        self._newest_sign = time.perf_counter()
        # Its put is reentrant: workers and the handler of interrupts call it at any moment.
        self._arrived: queue.SimpleQueue[Evaluation | None] = queue.SimpleQueue()

    @property
    def awaits(self) -> bool:
        """Whether there is an evaluation whose outcome is waited for."""
        return bool(self._awaited)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return len(self._awaited) + len(self._abandoned) < self._size

    def submit(self, trial: Trial) -> None:
        """Have a trial evaluated."""
        future = submit(self._executor, self._problem_function, trial)
        evaluation = Evaluation(trial, future, time.perf_counter())
        self._awaited[trial.id] = evaluation
        future.add_done_callback(lambda _: self._note(evaluation))

    def wake(self) -> None:
        """End a wait."""
        self._arrived.put(None)

    def arrivals(self, wait: bool) -> Iterator[Evaluation]:
        """Evaluations that ended in time, in the order in which they did; first wait for one."""
        try:
            arrived = self._arrived.get(wait, self._patience() if wait else None)
            while True:
                if arrived is not None and self._free(arrived):
                    yield arrived
                arrived = self._arrived.get_nowait()
        except queue.Empty:
            return

    def overdue(self) -> Iterator[Evaluation]:
        """Evaluations that are waited for no longer; oldest first.

        Raises:
            TimeoutError: if nothing goes on: every slot is taken by an evaluation that is overdue,
                or the next in turn cannot begin behind those, and for a whole ``timeout`` none
                has ended, nor become overdue.
        """
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
            yield evaluation

    def withdraw(self) -> list[Evaluation]:
        """Cancel what has not begun; all that was still waited for."""
        withdrawn = list(self._awaited.values())
        for evaluation in withdrawn:
            evaluation.future.cancel()
        self._awaited.clear()
        return withdrawn

    def _note(self, evaluation: Evaluation) -> None:
        evaluation.ended = time.perf_counter()
        self._arrived.put(evaluation)

    def _free(self, evaluation: Evaluation) -> bool:
        """Give its slot back; whether its outcome was waited for."""
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
        waiting = iter(self._awaited.values())
        since = next((e.submitted for e in waiting), self._newest_sign)
        return max(0.0, since + self._timeout - time.perf_counter())

    def _stuck(self) -> TimeoutError:
        return TimeoutError(
            f"Expected an evaluation to end within {self._timeout:g} s. Got "
            f"{len(self._abandoned)} that hang in their workers: those of trials "
            f"{list(self._abandoned)}, which expired. All others stay open; run_async with the "
            "same optimizer and another executor begins with them."
        )
