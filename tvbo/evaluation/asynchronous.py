"""Many evaluations at a time, on threads, processes or a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Executor

from torch import Tensor

from tvbo.evaluation.executors import OnError, isolates
from tvbo.evaluation.history import History
from tvbo.evaluation.loop import Loop
from tvbo.evaluation.objective import Objective, TrialFunction, as_function
from tvbo.evaluation.workers import WorkerExecutor
from tvbo.optimizers import Optimizer
from tvbo.terminal import TrialProgress
from tvbo.values import check_count


def run_async(
    objective: Objective,
    optimizer: Optimizer,
    executor: Executor,
    *,
    num_trials: int,
    max_pending: int,
    times: Callable[[], float] | None = None,
    contexts: Callable[[], Tensor] | None = None,
    timeout: float | None = None,
    on_error: OnError = "fail",
    history: History | None = None,
    progress: bool = True,
    label: str | None = None,
) -> History:
    """Ask, submit, and tell whatever comes back first, with ``max_pending`` evaluations under way.

    The optimizer is only ever called here, in the calling thread. A call from another thread while
    one is under way is refused there; between two of them it is not, but would surprise the run.
    Every outcome that has arrived is told before the next ask, unless asks are slow. Where
    ``max_pending`` asks take more than a quarter of an evaluation, as many trials are asked for
    while all workers are busy, each at its time, and outcomes are told, and trials expire, between
    two such batches: a worker that ends gets its next trial at once, and the asks of a batch share
    a fit.

    Trials that the optimizer holds open at the start, such as those of an interrupted run, are
    submitted first and count.

    Ctrl-C takes effect between two calls of the optimizer; a second one at once. Evaluations not
    begun are cancelled, outcomes that have arrived are told, all other trials stay open: call this
    again with the same optimizer to go on. The same where the executor breaks, which is no fault of
    a trial; one that takes its process down each time wants ``optimizer.fail(trial, reason)``.

    Args:
        objective: A function of a trial that returns the outcome, or the outcome and the variance
            of its noise, or a :class:`tvbo.test_functions.DriftingProblem`, as in :func:`run`. For
            processes it must be picklable.
        optimizer: What is asked and told.
        executor: Evaluates: threads, processes, or those of a Dask cluster
            (:func:`dask_executor`).
        num_trials: Number of trials, including those that were open at the start and those that the
            optimizer skips, which are not evaluated.
        max_pending: Number of evaluations under way; best what the executor has workers.
        times: Returns the present time for an ask; None counts rounds. A trial that is asked for
            while all workers are busy has the time of its ask.
        contexts: Returns the present context for an ask; None where there are none. An optimizer
            that was declared without contexts is not told them. With contexts, no trial is asked
            for before there is a worker.
        timeout: Seconds from the start of an evaluation until its trial expires; on executors other
            than threads, processes and Dask, from submitting it. The evaluation goes on in its
            worker and keeps its place among the ``max_pending`` until it ends; what it returns is
            dropped. None waits.
        on_error: What becomes of a trial whose evaluation raises, or returns what is no finite
            number, or a number that the optimizer refuses: ``"fail"``, it fails with that reason,
            or ``"raise"``, it stays open, and the run ends.
        history: Where to record the rounds, also if this raises; default a new one. That of an
            earlier run of the same optimizer is continued.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Warns:
        UserWarning: if several trials are to be open at a time, but the optimizer ignores those, or
            a Dask cluster has no workers.

    Raises:
        ValueError: if ``num_trials`` or ``max_pending`` is no whole number above 0, ``timeout`` is
            not positive, ``on_error`` is neither, or ``history`` is another optimizer's.
        EvaluationError: if an evaluation raised, with ``on_error="raise"``.
        TypeError: if ``executor`` is none, or ``objective`` cannot be sent to its processes.
        BrokenExecutor: if the executor lost its workers.
        TimeoutError: if evaluations hang, past their ``timeout``, none is under way within it, and
            for one more ``timeout`` none began or ended. All other trials stay open. A worker that
            hangs is not ended here; a ``with`` over an executor waits for it.

    Example:
        >>> with ThreadPoolExecutor(4) as executor:
        ...     run_async(measure, optimizer, executor, num_trials=100, max_pending=4)
    """
    check_count(num_trials=num_trials)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"Expected a timeout > 0 seconds. Got {timeout}.")
    function = as_function(objective, optimizer)
    workers = make_workers(executor, function, optimizer, max_pending, timeout, on_error)
    history = History() if history is None else history
    history.check(optimizer)

    def present() -> tuple[float | None, Tensor | None]:
        return None if times is None else times(), None if contexts is None else contexts()

    label = type(optimizer).__name__ if label is None else label
    with TrialProgress(num_trials, label, progress) as bar:
        loop = Loop(optimizer, function, workers, history)
        loop.run(num_trials, present, bar, optimizer.open_trials)
    return history


def make_workers(
    executor: Executor,
    function: TrialFunction,
    optimizer: Optimizer,
    max_pending: int,
    timeout: float | None = None,
    on_error: OnError = "fail",
) -> WorkerExecutor:
    """Return the workers of a run; warn on behalf of its caller if trials would be repeated."""
    check_count(max_pending=max_pending)
    workers = WorkerExecutor(executor, function, max_pending, timeout, isolates(on_error))
    if max_pending > 1 and optimizer.repeats_open_trials:
        warnings.warn(
            "Expected an optimizer that counts open trials, such as any recipe with the default "
            "pending=Hallucinate(). Got one that ignores them: it may ask for the same action "
            f"{max_pending} times at once.",
            stacklevel=3,
        )
    return workers
