"""Run an optimizer on an objective, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from torch import Tensor

from tvbo.evaluation.asynchronous import make_workers
from tvbo.evaluation.executors import OnError, SimulatedExecutor, TrialExecutor, isolates
from tvbo.evaluation.history import History
from tvbo.evaluation.loop import Loop
from tvbo.evaluation.objective import Objective, as_function
from tvbo.optimizers import Optimizer, Trial
from tvbo.spaces.observations import check_finite
from tvbo.terminal import TrialProgress
from tvbo.test_functions.base import DriftingProblem
from tvbo.values import as_numbers

SAME_TIME = 1e-12
"""Difference of two times, relative to the largest, up to which they are one time."""


def run(
    objective: Objective,
    optimizer: Optimizer,
    *,
    horizon: int,
    executor: Executor | None = None,
    max_pending: int = 1,
    delay: Callable[[Trial], float] | None = None,
    times: Iterable[float] | None = None,
    contexts: Tensor | None = None,
    on_error: OnError | None = None,
    history: History | None = None,
    progress: bool = True,
    label: str | None = None,
) -> History:
    """Ask, evaluate, tell, record, for ``horizon`` rounds.

    A trial that the optimizer skips is not evaluated; its action is scored like any other. Trials
    that are open at the start stay so; :func:`run_async` begins with them.

    Args:
        objective: A :class:`tvbo.test_functions.DriftingProblem`, which also scores each round
            against
            its optimum, or a function of a :class:`tvbo.optimizers.Trial` that returns the outcome,
            or the outcome and the variance of its noise. The trial that it gets has the context of
            the round, even if the optimizer was declared without contexts.
        optimizer: Asked once per round.
        horizon: Number of rounds.
        executor: Executor of :mod:`concurrent.futures` that evaluates the trials, as in
            :func:`run_async`. None evaluates them in the calling thread.
        max_pending: Number of evaluations under way on the executor.
        delay: Returns how long after ``trial.t`` the outcome of a trial arrives, in the unit of
            time. An ask knows the outcomes that arrived before it: one that arrives at the very
            time of an ask comes just after that ask, and is told before the next. So with times
            1, 2, ... an outcome that is late by τ whole rounds is missing in τ asks; 0 is told
            before the next ask, and a fraction of a round adds none. This is the model of Vakili et
            al. (2023), where the choice of round t + 1 rests on the outcomes of rounds s with
            s + τ_s <= t. Infinity: it never arrives. None: 0 for all. Delays to simulate are in
            :mod:`tvbo.evaluation`. Not with an executor, whose outcomes take their own time.
        times: The time of each round, numbers or timestamps, non-decreasing; default
            ``1, ..., horizon``. Where a time stands several times, so many actions are tried at it,
            one after another.
        contexts: The context of each round, ``horizon x c``; default what ``problem.context`` says.
            An optimizer that was declared without contexts is not told them.
        on_error: What becomes of a trial whose evaluation raises, or returns what is no finite
            number, or a number that the optimizer refuses: ``"fail"``, it fails with that reason,
            or ``"raise"``, it stays open, and the run ends with the error. None is ``"raise"`` in
            the calling thread, and ``"fail"`` on an executor, where others are under way.
        history: Where to record the rounds, also if this raises; default a new one. That of an
            earlier run of the same optimizer is continued.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Returns:
        The history. Outcomes of skipped trials are NaN in its rewards; those that had not arrived
        at the end, too, and they stay open in the optimizer.

    Raises:
        ValueError: if ``horizon`` is not positive, ``times`` does not give ``horizon`` times or
            ``contexts`` not as many contexts, the problem has contexts and none are given, a delay
            is negative, there are both a delay and an executor, ``max_pending`` is no whole number
            above 0 or above 1 without an executor, ``on_error`` is neither, or ``history`` is
            another optimizer's.
        TypeError: if ``objective`` is neither a problem nor callable, ``executor`` is none, or
            cannot be sent the objective.
        BrokenExecutor: if the executor lost its workers.

    Example:
        >>> history = run(lambda trial: measure(trial.X, trial.t), optimizer, horizon=100)
    """
    if horizon < 1:
        raise ValueError(f"Expected horizon >= 1 round. Got {horizon}.")
    if times is None and optimizer.time_scale is not None:
        raise ValueError("Expected times, since the optimizer has a time_unit. Got none.")
    asked = list(range(1, horizon + 1) if times is None else times)
    if len(asked) != horizon:
        raise ValueError(f"Expected {horizon} times. Got {len(asked)}.")
    numbers = [optimizer.labels.number(t) for t in asked]
    rounds = iter(list(zip(numbers, _contexts(objective, contexts, numbers), strict=True)))
    function = as_function(objective, optimizer)
    trial_executor: TrialExecutor
    if executor is None and max_pending != 1:
        raise ValueError(f"Expected an executor for {max_pending} evaluations at a time. Got none.")
    if executor is None:
        # Sums such as 0.7 + 0.1 and 0.8 are one time, whichever way they are rounded.
        rounding = SAME_TIME * max(abs(t) for t in numbers)
        trial_executor = SimulatedExecutor(function, delay, rounding, isolates(on_error or "raise"))
    elif delay is None:
        trial_executor = make_workers(
            executor, function, optimizer, max_pending, on_error=on_error or "fail"
        )
    else:
        raise ValueError("Expected a simulated delay or an executor. Got both.")
    history = History() if history is None else history
    history.check(optimizer)
    label = type(optimizer).__name__ if label is None else label
    with TrialProgress(horizon, label, progress) as bar:
        loop = Loop(optimizer, function, trial_executor, history)
        loop.run(horizon, lambda: next(rounds), bar)
    return history


def _contexts(
    objective: Objective, contexts: Tensor | None, times: Sequence[float]
) -> list[Tensor | None]:
    """Return the context of each round, None where there is none."""
    problem = objective if isinstance(objective, DriftingProblem) else None
    if contexts is None:
        given = [None if problem is None else problem.context(t) for t in times]
        width = 0 if problem is None else problem.layout.num_contexts
        if width and any(context is None for context in given):
            raise ValueError(
                f"Expected contexts ({len(times)} x {width}), since the problem has contexts and "
                "does not fix them by time. Got none."
            )
        return given
    contexts = as_numbers("contexts", contexts)
    width = contexts.shape[-1] if problem is None else problem.layout.num_contexts
    if contexts.shape != (len(times), width):
        raise ValueError(
            f"Expected contexts of shape {len(times)} x {width}. "
            f"Got contexts.shape={tuple(contexts.shape)}."
        )
    check_finite("contexts", contexts)
    return list(contexts)
