"""Many evaluations at a time, on threads, processes or a cluster."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from typing import TYPE_CHECKING

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.feedback.async_history import AsyncHistory
from tvbo.feedback.async_progress import AsyncProgress
from tvbo.feedback.evaluation import ProblemFunction, check_executor, collect
from tvbo.feedback.interrupt import HeldInterrupt
from tvbo.feedback.slots import Evaluation, Slots
from tvbo.terminal import visible
from tvbo.theory.arguments import check_count

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

    The optimizer is only ever called here, in the calling thread. A call from another thread while
    one is under way is refused there; between two of them it is not, but would surprise the run.
    Every outcome that has arrived is told before the next
    ask. Trials that it holds open at the start, such as those of an interrupted run, are submitted
    first and count. A trial whose evaluation raises, or returns what is no finite number, or a
    number that the optimizer refuses, fails with that reason.

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
            if it has begun, goes on in its worker and keeps its place among the ``max_pending``
            until it ends; what it gives is dropped. None waits. Dask does not say what has begun:
            there the place is given away, and trials may expire behind a worker that hangs.
        history: Where to note what happens, also if this raises; default a new one. That of an
            earlier run of the same optimizer goes on.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Warns:
        UserWarning: if several trials are to be open at a time, but the optimizer ignores those.

    Raises:
        ValueError: if ``num_trials`` or ``max_pending`` is no whole number above 0, ``timeout`` is
            not positive, or ``history`` is another optimizer's.
        TypeError: if ``executor`` is none, or ``problem_function`` cannot be sent to its processes.
        BrokenExecutor: if the executor lost its workers.
        TimeoutError: if all places are taken by evaluations that hang: past their ``timeout``, and
            for one more ``timeout`` none of them ended. All other trials stay open. A worker that
            hangs is not ended here; a ``with`` over an executor waits for it.

    Example:
        >>> with ThreadPoolExecutor(4) as executor:
        ...     run_async(measure, optimizer, executor, num_trials=100, max_pending=4)
    """
    check_count(num_trials=num_trials, max_pending=max_pending)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"Expected a timeout > 0 seconds. Got {timeout}.")
    check_executor(executor, problem_function)
    if max_pending > 1 and optimizer.repeats_open_trials:
        warnings.warn(
            "Expected an optimizer that counts open trials, such as any recipe with the default "
            "pending=Hallucinate(). Got one that ignores them: it may ask for the same action "
            f"{max_pending} times at once.",
            stacklevel=2,
        )
    history = AsyncHistory() if history is None else history
    history.check(optimizer)
    label = type(optimizer).__name__ if label is None else label
    slots = Slots(executor, problem_function, max_pending, timeout)
    loop = _Loop(optimizer, slots, num_trials, timeout, history)
    started = time.perf_counter()
    try:
        with AsyncProgress(num_trials, label, progress) as bar, HeldInterrupt(slots.wake) as held:
            loop.run(times, contexts, bar, held)
    finally:
        history.slot_seconds += max_pending * (time.perf_counter() - started)
    return history


class _Loop:
    """One step at a time: take in what has arrived, else submit, else wait."""

    def __init__(
        self,
        optimizer: Optimizer,
        slots: Slots,
        num_trials: int,
        timeout: float | None,
        history: AsyncHistory,
    ):
        self._optimizer = optimizer
        self._slots = slots
        self._left = num_trials
        self._timeout = timeout
        self._history = history
        self._ended_before = history.num_ended
        self._resumed = deque(optimizer.open_trials)

    def run(
        self,
        times: Callable[[], float] | None,
        contexts: Callable[[], Tensor] | None,
        bar: AsyncProgress,
        held: HeldInterrupt,
    ) -> None:
        """All trials; what is still pending when something goes wrong stays open."""
        try:
            while self._left > 0 or self._slots.awaits:
                may_submit = self._left > 0 and self._slots.has_room
                for evaluation in self._slots.arrivals(wait=not may_submit):
                    self._settle(evaluation)
                held.take_effect()
                for evaluation in self._slots.overdue():
                    self._expire(evaluation)
                if may_submit:
                    self._submit(times, contexts)
                self._show(bar)
        except BrokenExecutor as error:
            self._stop(error)
            open_ids = [trial.id for trial in self._optimizer.open_trials]
            raise BrokenExecutor(
                f"The executor broke: {visible(str(error))} Trials {open_ids} are open; run_async "
                "with the same optimizer and another executor begins with them."
            ) from error
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._show(bar)

    def _show(self, bar: AsyncProgress) -> None:
        bar.show(self._history.num_ended - self._ended_before, self._history)

    def _settle(self, evaluation: Evaluation) -> None:
        evaluated = collect(evaluation.future)
        fault = evaluated.fault
        if not fault:
            try:
                self._optimizer.tell(evaluation.trial, evaluated.Y, evaluated.Yvar)
            except InputDataError as error:
                # Refused again if the trial were evaluated again.
                fault = str(error)
        if fault:
            self._optimizer.fail(evaluation.trial, fault)
            self._history.end(evaluation.trial, "failed", evaluation.seconds, reason=fault)
        else:
            self._history.end(evaluation.trial, "told", evaluation.seconds, reward=evaluated.Y)

    def _expire(self, evaluation: Evaluation) -> None:
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
        else:
            self._slots.submit(trial)

    def _stop(self, error: BaseException) -> None:
        """Cancel what has not begun, tell what has arrived, and leave the rest open."""
        for evaluation in self._slots.withdraw():
            if not evaluation.future.done() or evaluation.future.cancelled():
                self._history.end(evaluation.trial, "open", evaluation.seconds)
                continue
            try:
                self._settle(evaluation)
            except (BrokenExecutor, KeyboardInterrupt):
                # Not evaluated to the end.
                self._history.end(evaluation.trial, "open", evaluation.seconds)
            except Exception as another:
                error.add_note(f"Then, of trial {evaluation.trial.id}: {visible(str(another))}")
