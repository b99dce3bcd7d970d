"""Many evaluations at a time, on threads, processes or a cluster."""

from __future__ import annotations

import queue
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from tvbo.feedback.async_history import AsyncHistory
from tvbo.feedback.async_progress import AsyncProgress
from tvbo.feedback.evaluation import ProblemFunction, check_executor, collect, submit
from tvbo.feedback.interrupt import HeldInterrupt
from tvbo.optimizers.trial import Trial

if TYPE_CHECKING:
    # At run time the optimizers import the pending policies of this package.
    from tvbo.optimizers import Optimizer


def run_async(
    problem_function: ProblemFunction,
    optimizer: Optimizer,
    executor: Executor,
    *,
    num_trials: int,
    max_pending: int,
    times: Callable[[], float] | None = None,
    contexts: Callable[[], Tensor] | None = None,
    timeout: float | None = None,
    history: AsyncHistory | None = None,
    progress: bool = True,
    label: str | None = None,
) -> AsyncHistory:
    """Ask, submit, and tell whatever comes back first, with ``max_pending`` evaluations under way.

    The optimizer is only ever called here, in the calling thread; every outcome that has arrived is
    told before the next ask. Trials that it holds open at the start, such as those of an
    interrupted run, are submitted first and count. A trial whose evaluation raises, or returns what
    is no finite number, fails with that reason.

    Ctrl-C takes effect between two calls of the optimizer; a second one at once. Evaluations not
    begun are cancelled, outcomes that have arrived are told, all other trials stay open: call this
    again with the same optimizer to go on. The same where the executor breaks, which is no fault of
    a trial; one that takes its process down each time wants ``optimizer.fail(trial, reason)``.

    Args:
        problem_function: Gives the outcome of a trial, or the outcome and the variance of its
            noise. It must be picklable for processes.
        optimizer: What is asked and told.
        executor: Evaluates: threads, processes, or those of a Dask cluster
            (:func:`tvbo.feedback.dask_executor`).
        num_trials: Number of trials, including those that were open at the start and those that the
            optimizer skips, which are not evaluated.
        max_pending: Number of evaluations under way; best what the executor has workers.
        times: Gives the present time for an ask; None counts rounds.
        contexts: Gives the present context for an ask; None where there are none.
        timeout: Seconds from submitting a trial until it expires. Its evaluation is cancelled, or
            if it has begun, goes on in its worker, and what it gives is dropped. None waits.
        history: Where to note what happens, also if this raises; default a new one.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Warns:
        UserWarning: if several trials are to be open at a time, but the optimizer ignores those.

    Raises:
        ValueError: if ``num_trials`` or ``max_pending`` is not positive, or ``timeout`` is not.
        TypeError: if ``executor`` is none, or ``problem_function`` cannot be sent to its processes.
        BrokenExecutor: if the executor lost its workers.

    Example:
        >>> with ThreadPoolExecutor(4) as executor:
        ...     run_async(measure, optimizer, executor, num_trials=100, max_pending=4)
    """
    if num_trials < 1 or max_pending < 1:
        raise ValueError(
            f"Expected num_trials and max_pending >= 1. Got {num_trials} and {max_pending}."
        )
    if timeout is not None and not timeout > 0:
        raise ValueError(f"Expected a timeout > 0 seconds. Got {timeout}.")
    check_executor(executor, problem_function)
    if max_pending > 1 and optimizer.repeats_open_trials:
        warnings.warn(
            "Expected an optimizer that counts open trials, such as recipes.gp_bucb or any with "
            "pending=Hallucinate(). Got one that ignores them: it may ask for the same action "
            f"{max_pending} times at once.",
            stacklevel=2,
        )
    history = AsyncHistory() if history is None else history
    label = type(optimizer).__name__ if label is None else label
    loop = _Loop(problem_function, optimizer, executor, num_trials, max_pending, timeout, history)
    started = time.perf_counter()
    try:
        with AsyncProgress(num_trials, label, progress) as bar, HeldInterrupt(loop.wake) as held:
            loop.run(times, contexts, bar, held)
    finally:
        history.slot_seconds += max_pending * (time.perf_counter() - started)
    return history


@dataclass(eq=False)
class _Evaluation:
    """A trial that was submitted."""

    trial: Trial
    future: Future
    submitted: float
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self.ended is None else self.ended) - self.submitted


class _Loop:
    """One step at a time: take in what has arrived, else submit, else wait."""

    def __init__(
        self,
        problem_function: ProblemFunction,
        optimizer: Optimizer,
        executor: Executor,
        num_trials: int,
        max_pending: int,
        timeout: float | None,
        history: AsyncHistory,
    ):
        self._problem_function = problem_function
        self._optimizer = optimizer
        self._executor = executor
        self._left = num_trials
        self._max_pending = max_pending
        self._timeout = timeout
        self._history = history
        self._ended_before = history.num_ended
        self._resumed = deque(optimizer.open_trials)
        self._pending: dict[int, _Evaluation] = {}
        # Its put is reentrant: workers and the handler of interrupts call it at any moment.
        self._arrived: queue.SimpleQueue[_Evaluation | None] = queue.SimpleQueue()

    def wake(self) -> None:
        """End a wait, so that an interrupt takes effect."""
        self._arrived.put(None)

    def run(
        self,
        times: Callable[[], float] | None,
        contexts: Callable[[], Tensor] | None,
        bar: AsyncProgress,
        held: HeldInterrupt,
    ) -> None:
        """All trials; what is still pending when something goes wrong stays open."""
        try:
            while self._left or self._pending:
                may_submit = self._left and len(self._pending) < self._max_pending
                self._take_in(wait=not may_submit)
                held.take_effect()
                self._expire_overdue()
                if may_submit:
                    self._submit(times, contexts)
                self._show(bar)
        except BrokenExecutor as error:
            self._stop(error)
            open_ids = [trial.id for trial in self._optimizer.open_trials]
            raise BrokenExecutor(
                f"The executor broke: {error} Trials {open_ids} are open; run_async with the same "
                "optimizer and another executor begins with them."
            ) from error
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._show(bar)

    def _show(self, bar: AsyncProgress) -> None:
        bar.show(self._history.num_ended - self._ended_before, self._history)

    def _take_in(self, wait: bool) -> None:
        """Tell all that has arrived, in the order in which it came; first wait for something."""
        try:
            self._settle(self._arrived.get(wait, self._patience() if wait else None))
            while True:
                self._settle(self._arrived.get_nowait())
        except queue.Empty:
            return

    def _patience(self) -> float | None:
        """Seconds until the first trial is overdue."""
        if self._timeout is None:
            return None
        oldest = next(iter(self._pending.values()))
        return max(0.0, oldest.submitted + self._timeout - time.perf_counter())

    def _settle(self, evaluation: _Evaluation | None) -> None:
        if evaluation is None or self._pending.get(evaluation.trial.id) is not evaluation:
            # A wake-up; or an outcome that is too late.
            return
        # Whatever tell may raise, it is not told twice.
        del self._pending[evaluation.trial.id]
        trial, seconds = evaluation.trial, evaluation.seconds
        evaluated = collect(evaluation.future)
        if evaluated.fault:
            self._optimizer.fail(trial, evaluated.fault)
            self._history.end(trial, "failed", seconds, reason=evaluated.fault)
        else:
            self._optimizer.tell(trial, evaluated.Y, evaluated.Yvar)
            self._history.end(trial, "told", seconds, reward=evaluated.Y)

    def _expire_overdue(self) -> None:
        while self._pending and self._timeout is not None and self._patience() == 0:
            evaluation = next(iter(self._pending.values()))
            del self._pending[evaluation.trial.id]
            evaluation.future.cancel()
            reason = f"no outcome within {self._timeout:g} s"
            self._optimizer.expire(evaluation.trial, reason)
            self._history.end(evaluation.trial, "expired", evaluation.seconds, reason=reason)

    def _submit(
        self, times: Callable[[], float] | None, contexts: Callable[[], Tensor] | None
    ) -> None:
        started = time.perf_counter()
        if self._resumed:
            trial, seconds = self._resumed.popleft(), 0.0
        else:
            trial = self._optimizer.ask(
                None if times is None else times(), None if contexts is None else contexts()
            )
            seconds = time.perf_counter() - started
        self._left -= 1
        self._history.begin(trial, seconds)
        if trial.skipped:
            self._history.end(trial, "skipped")
            return
        future = submit(self._executor, self._problem_function, trial)
        evaluation = _Evaluation(trial, future, time.perf_counter())
        self._pending[trial.id] = evaluation
        future.add_done_callback(lambda _: self._note(evaluation))

    def _note(self, evaluation: _Evaluation) -> None:
        evaluation.ended = time.perf_counter()
        self._arrived.put(evaluation)

    def _stop(self, error: BaseException) -> None:
        """Cancel what has not begun, tell what has arrived, and leave the rest open."""
        for evaluation in self._pending.values():
            evaluation.future.cancel()
        for evaluation in list(self._pending.values()):
            if not evaluation.future.done() or evaluation.future.cancelled():
                self._history.end(evaluation.trial, "open", evaluation.seconds)
                continue
            try:
                self._settle(evaluation)
            except (BrokenExecutor, KeyboardInterrupt):
                # Not evaluated to the end.
                self._history.end(evaluation.trial, "open", evaluation.seconds)
            except Exception as another:
                error.add_note(f"Then, of trial {evaluation.trial.id}: {another}")
