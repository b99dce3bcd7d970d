"""Run an optimizer on an objective: in the calling thread, or on workers."""

from __future__ import annotations

import heapq
import math
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from statistics import fmean
from types import FrameType
from typing import Literal, get_args

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.evaluation.delays import DelayFunction
from tvbo.evaluation.evaluations import (
    Evaluation,
    EvaluationError,
    Objective,
    Outcome,
    ProblemFunction,
    TrialFunction,
    Workers,
    evaluate,
    type_and_text,
)
from tvbo.evaluation.history import History, Round
from tvbo.optimizers import Optimizer, Trial
from tvbo.spaces.observations import check_finite
from tvbo.terminal import TrialProgress, visible
from tvbo.test_functions.base import DriftingProblem
from tvbo.values import Table, as_numbers, check_count

OnError = Literal["raise", "fail"]

SAME_TIME = 1e-12
"""Difference of two times, relative to the largest, up to which they are one time."""

SLOW_ASK_SHARE = 0.25
"""Share of the time of an evaluation above which asks for all workers are made ahead."""

NUM_RECENT = 20
"""Number of asks and of evaluations whose mean time is looked at for that."""


def run(
    objective: Objective,
    optimizer: Optimizer,
    *,
    horizon: int,
    executor: Executor | None = None,
    max_pending: int = 1,
    delay: DelayFunction | float = 0.0,
    times: Iterable[float] | None = None,
    contexts: Table | None = None,
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
            against its optimum, or a function of a :class:`tvbo.optimizers.Trial` that returns the
            outcome, or the outcome and the variance of its noise. The trial that it gets has the
            context of the round, even if the optimizer was declared without contexts.
        optimizer: Asked once per round.
        horizon: Number of rounds.
        executor: Executor of :mod:`concurrent.futures` that evaluates the trials, as in
            :func:`run_async`. None evaluates them in the calling thread.
        max_pending: Number of evaluations under way on the executor.
        delay: How long after ``trial.t`` its outcome arrives, in the unit of time: a number, or a
            function of the trial, such as a :class:`RandomDelay`; infinity if it never does. An ask
            knows the outcomes that arrived before it: one that arrives at the very time of an ask
            comes just after that ask, and is recorded before the next. So with times 1, 2, ... an
            outcome that is late by τ whole rounds is missing in τ asks; 0 is recorded before the
            next ask, and a fraction of a round adds none. This is the model of Vakili et al.
            (2023), where the choice of round t + 1 rests on the outcomes of rounds s with
            s + τ_s <= t. Not with an executor, whose outcomes take their own time.
        times: The time of each round, numbers or timestamps, non-decreasing; default
            ``1, ..., horizon``, after the rounds of ``history``. Where a time stands several times,
            so many actions are tried at it, one after another.
        contexts: The context of each round, ``horizon x c``, or a table with the names; default
            what ``problem.context`` says. An optimizer that was declared without contexts does not
            get them.
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
    check_count(horizon=horizon)
    if times is None and optimizer.time_scale is not None:
        raise ValueError("Expected times, since the optimizer has a time_unit. Got none.")
    ended = 0 if history is None else len(history)
    asked = list(range(ended + 1, ended + horizon + 1) if times is None else times)
    if len(asked) != horizon:
        raise ValueError(f"Expected {horizon} times. Got {len(asked)}.")
    numbers = [optimizer.labels.number(t) for t in asked]
    if optimizer.contexts is not None and not isinstance(contexts, Tensor | None):
        contexts = optimizer.contexts.read_table(contexts)
    rounds = list(zip(numbers, _contexts(objective, contexts, numbers), strict=True))
    if executor is None and max_pending != 1:
        raise ValueError(f"Expected an executor for {max_pending} evaluations at a time. Got none.")
    if executor is not None and delay != 0.0:
        raise ValueError("Expected a simulated delay or an executor. Got both.")
    on_error = on_error or ("raise" if executor is None else "fail")
    made = _Run(objective, optimizer, history, on_error, horizon, label, progress)
    if executor is None:
        made.simulate(rounds, delay)
    else:
        made.evaluate_on(executor, max_pending, None, iter(rounds).__next__, ())
    return made.history


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
    Every outcome that has arrived is recorded before the next ask, unless asks are slow. Where
    ``max_pending`` asks take more than a quarter of an evaluation, as many trials are asked for
    while all workers are busy, each at its time, and outcomes are recorded, and trials expire,
    between two such batches: a worker that ends gets its next trial at once, and the asks of a
    batch share a fit.

    Trials that the optimizer holds open at the start, such as those of an interrupted run, are
    submitted first and count.

    Ctrl-C takes effect between two calls of the optimizer; a second one at once. Evaluations not
    begun are cancelled, outcomes that have arrived are recorded, all other trials stay open: call
    this again with the same optimizer to go on. The same where the executor breaks, which is no
    fault of a trial; one that takes its process down each time wants ``optimizer.fail(trial,
    reason)``.

    Args:
        objective: A function of a trial that returns the outcome, or the outcome and the variance
            of its noise, or a :class:`tvbo.test_functions.DriftingProblem`, as in :func:`run`. For
            processes it must be picklable.
        optimizer: What is asked, and takes the outcomes.
        executor: Evaluates: threads, processes, or those of a Dask cluster
            (:func:`dask_executor`).
        num_trials: Number of trials, including those that were open at the start and those that the
            optimizer skips, which are not evaluated.
        max_pending: Number of evaluations under way; best what the executor has workers.
        times: Returns the present time for an ask; None counts rounds. A trial that is asked for
            while all workers are busy has the time of its ask.
        contexts: Returns the present context for an ask; None where there are none. An optimizer
            that was declared without contexts does not get them. With contexts, no trial is asked
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
    made = _Run(objective, optimizer, history, on_error, num_trials, label, progress)

    def present() -> tuple[float | None, Tensor | None]:
        return None if times is None else times(), None if contexts is None else contexts()

    made.evaluate_on(executor, max_pending, timeout, present, optimizer.open_trials)
    return made.history


class _Run:
    """Asks, evaluates, tells or fails, and records.

    Whatever is pending when something goes wrong stays open in the optimizer.

    Args:
        objective: What is evaluated; a problem also scores each action.
        optimizer: What is asked, and takes the outcomes, in the calling thread only.
        history: Where the rounds are recorded; None is a new one.
        on_error: What becomes of a trial whose evaluation goes wrong.
        num_trials: Number of trials.
        label: What the progress bar says; None is the name of the optimizer's class.
        progress: Show a progress bar.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        history: History | None,
        on_error: OnError,
        num_trials: int,
        label: str | None,
        progress: bool,
    ):
        if on_error not in get_args(OnError):
            raise ValueError(f"Expected on_error 'raise' or 'fail'. Got {on_error!r}.")
        self.history = History() if history is None else history
        self.history.check(optimizer)
        if isinstance(objective, DriftingProblem):
            if optimizer.minimize:
                raise ValueError(
                    "Expected an optimizer that maximizes, as regret on a DriftingProblem is "
                    "counted from its largest value. Got one with minimize=True."
                )
            objective = ProblemFunction(objective)
        elif not callable(objective):
            raise TypeError(
                f"Expected a DriftingProblem or a function of a trial. Got {objective!r}."
            )
        self._function: TrialFunction = objective
        self._optimizer = optimizer
        self._fails_on_error = on_error == "fail"
        self._num_left = num_trials
        self._ended_before = self.history.num_ended
        self._bar = TrialProgress(num_trials, label or type(optimizer).__name__, progress)
        self._newest_outcome = ""
        self._closing_seconds = 0.0
        # Open trials that wait for room.
        self._waiting: deque[Trial] = deque()
        self._asking: deque[float] = deque(maxlen=NUM_RECENT)
        self._evaluating: deque[float] = deque(maxlen=NUM_RECENT)

    def simulate(
        self, rounds: Sequence[tuple[float, Tensor | None]], delay: DelayFunction | float
    ) -> None:
        """Evaluate in the calling thread; the outcomes arrive at simulated times.

        Ctrl-C takes effect between two calls of the optimizer, or while an objective is evaluated.
        """
        # Sums such as 0.7 + 0.1 and 0.8 are one time, whichever way they are rounded.
        rounding = SAME_TIME * max(abs(t) for t, _ in rounds)
        coming: list[tuple[float, int, Trial, Outcome | EvaluationError, float]] = []

        def tell_arrived(until: float) -> None:
            while coming and coming[0][0] <= until:
                self._close(*heapq.heappop(coming)[2:])

        last = -math.inf
        with self._bar:
            for t, context in rounds:
                with uninterrupted():
                    tell_arrived(max(last + rounding, t - rounding))
                    last = t
                    trial = self._ask(t, context)
                self._show()
                if trial.skipped:
                    continue
                started = time.perf_counter()
                outcome: Outcome | EvaluationError
                try:
                    outcome = evaluate(self._function, trial)
                except Exception as error:
                    if not self._fails_on_error:
                        raise
                    outcome = EvaluationError(type_and_text(error))
                finally:
                    seconds = time.perf_counter() - started
                    self.history.end(trial, "open", seconds)
                late = float(delay(trial) if callable(delay) else delay)
                if not late >= 0:
                    raise ValueError(f"Expected a delay >= 0. Got {late} for trial {trial.id}.")
                heapq.heappush(coming, (trial.t + late, trial.id, trial, outcome, seconds))
            with uninterrupted():
                tell_arrived(last + rounding)
            self._show()

    def evaluate_on(
        self,
        executor: Executor,
        max_pending: int,
        timeout: float | None,
        present: Callable[[], tuple[float | None, Tensor | None]],
        resumed: Iterable[Trial],
    ) -> None:
        """Tell whatever has arrived, ask and submit, again and again.

        Where asking is slow, several are asked for before outcomes are recorded: they share a fit.
        Ctrl-C takes effect between two calls, or while an evaluation is waited for.

        Args:
            executor: Evaluates.
            max_pending: Number of evaluations under way.
            timeout: Seconds from its beginning until an evaluation is overdue; None waits for ever.
            present: Returns time and context of the ask that comes next.
            resumed: Trials that are submitted first.

        Raises:
            BrokenExecutor: if the executor lost its workers.
        """
        self._workers = Workers(executor, self._function, max_pending, timeout)
        if max_pending > 1 and self._optimizer.repeats_open_trials:
            warnings.warn(
                "Expected an optimizer that counts open trials, such as any recipe with the "
                "default pending=Hallucinate(). Got one that ignores them: it may ask for the same "
                f"action {max_pending} times at once.",
                stacklevel=3,
            )
        with self._bar:
            try:
                with uninterrupted():
                    for trial in islice(resumed, self._num_left):
                        self._queue(self._begin(Round(trial, trial.context)))
                while self._num_left > 0 or self._waiting or self._workers.awaited:
                    if self._num_wanted == 0:
                        self._workers.wait()
                    with uninterrupted():
                        self._submit_waiting()
                        for evaluation in self._workers.completed():
                            self._finish(evaluation)
                    self._show()
                    wanted = self._num_wanted
                    for _ in range(wanted if self._num_ahead else min(1, wanted)):
                        with uninterrupted():
                            self._queue(self._ask(*present()))
                        self._show()
            except BaseException as error:
                self._stop(error)
                if not isinstance(error, BrokenExecutor):
                    raise
                open_ids = [trial.id for trial in self._optimizer.open_trials]
                raise BrokenExecutor(
                    f"The executor broke: {visible(str(error))} Trials {open_ids} are open; "
                    "run_async with the same optimizer and another executor begins with them."
                ) from error
        self._workers.close()

    def _ask(self, t: float | None, context: Tensor | None) -> Trial:
        """Ask for a trial; an optimizer without contexts does not get that of the round."""
        started = time.perf_counter()
        now = self._optimizer.labels.stamp(t)
        trial = self._optimizer.ask(now, None if self._optimizer.contexts is None else context)
        seconds = time.perf_counter() - started
        total, self._closing_seconds = self._closing_seconds + seconds, 0.0
        self._asking.append(total)
        if trial.context is not None:
            # As the optimizer understood it: what single precision rounded is undone.
            context = trial.context
        elif context is not None:
            context = as_numbers("context", context)
        asked = Round(
            trial,
            context,
            model_size=self._optimizer.model_size,
            ask_seconds=seconds,
            seconds=total,
        )
        return self._begin(asked)

    def _begin(self, asked: Round) -> Trial:
        """Record a round, and return its trial, with the context of the round."""
        trial = replace(asked.trial, context=asked.context)
        if isinstance(self._function, ProblemFunction):
            value, optimal_value = self._function.score(trial)
            asked = replace(asked, value=value, optimal_value=optimal_value)
        self.history.begin(asked)
        if trial.skipped:
            self.history.end(trial, "skipped")
        return trial

    def _close(self, trial: Trial, outcome: Outcome | EvaluationError, seconds: float) -> None:
        """Tell the outcome of a trial, or that it failed.

        Args:
            trial: The trial.
            outcome: The outcome, or the error that the evaluation raised.
            seconds: Time of the evaluation.
        """
        started = time.perf_counter()
        trial = self.history.round_of(trial).trial
        try:
            if isinstance(outcome, EvaluationError):
                raise outcome
            Y, Yvar = outcome
            self._optimizer.tell(trial, Y, Yvar)
        except (EvaluationError, InputDataError) as error:
            if not self._fails_on_error:
                raise
            # What is refused would be refused again if the trial were evaluated again.
            reason = type_and_text(error) if isinstance(error, InputDataError) else str(error)
            self._optimizer.fail(trial, reason)
            self.history.end(trial, "failed", seconds, reason=reason)
            return
        finally:
            self._closing_seconds += time.perf_counter() - started
        first, *others = self._optimizer.labels.outcome_columns
        outcomes = Y if isinstance(Y, dict) else {first: Y}
        self.history.end(
            trial,
            "told",
            seconds,
            reward=outcomes[first],
            variance=Yvar[first] if isinstance(Yvar, dict) else Yvar,
            others={name: outcomes[name] for name in others},
        )
        self._newest_outcome = f"told {', '.join(f'{Y:.4g}' for Y in outcomes.values())}"
        self._evaluating.append(seconds)

    @property
    def _num_wanted(self) -> int:
        """Number of trials to ask for now."""
        wanted = self._workers.room + self._num_ahead - len(self._waiting)
        return max(0, min(self._num_left, wanted))

    @property
    def _num_ahead(self) -> int:
        """Number of trials to have ready for the workers that are busy; 0 where asking is fast."""
        workers = self._workers.max_pending
        # A context is that of the evaluation, and may be another one by then.
        has_context = bool(self.history.rounds) and self.history.rounds[-1].context is not None
        if has_context or workers == 1 or not self._evaluating:
            return 0
        is_slow = workers * fmean(self._asking or [0.0]) > SLOW_ASK_SHARE * fmean(self._evaluating)
        return workers if is_slow else 0

    def _queue(self, trial: Trial) -> None:
        self._num_left -= 1
        if not trial.skipped:
            self._waiting.append(trial)
            self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit the trials for which there is room."""
        while self._waiting and self._workers.room > 0:
            self._workers.submit(self._waiting.popleft())

    def _finish(self, evaluation: Evaluation) -> None:
        """Close the trial of an evaluation that ended, or is overdue."""
        trial, seconds = evaluation.trial, evaluation.seconds
        if evaluation.is_overdue:
            reason = f"no outcome within {self._workers.timeout:g} s"
            self._optimizer.expire(self.history.round_of(trial).trial, reason)
            self.history.end(trial, "expired", seconds, reason=reason)
        else:
            self._close(trial, evaluation.outcome(), seconds)

    def _stop(self, error: BaseException) -> None:
        """Cancel what has not begun, tell what has arrived, and leave the rest open."""
        for evaluation in self._workers.close():
            try:
                with uninterrupted():
                    self._finish(evaluation)
                continue
            except (BrokenExecutor, KeyboardInterrupt):
                pass  # Not evaluated to the end.
            except Exception as another:
                error.add_note(f"Then, of trial {evaluation.trial.id}: {visible(str(another))}")
            self.history.end(evaluation.trial, "open", evaluation.seconds)
        self._show()

    def _show(self) -> None:
        """Show how many trials have ended, and the newest outcome."""
        ended = self.history.num_ended - self._ended_before
        self._bar.show(ended, self.history.counts, self._newest_outcome)


def _contexts(
    objective: Objective, contexts: Table | None, times: Sequence[float]
) -> list[Tensor | None]:
    """Return the context of each round, None where there is none."""
    T, problem = len(times), objective if isinstance(objective, DriftingProblem) else None
    if contexts is None:
        given = [None if problem is None else problem.context(t) for t in times]
        width = 0 if problem is None else problem.layout.num_contexts
        if width == 0 or all(context is not None for context in given):
            return given
        raise ValueError(
            f"Expected contexts ({T} x {width}), since the problem has contexts and does not fix "
            "them by time. Got none."
        )
    contexts = as_numbers("contexts", contexts)
    width = contexts.shape[-1] if problem is None else problem.layout.num_contexts
    if contexts.shape != (T, width):
        raise ValueError(
            f"Expected contexts of shape {T} x {width}. Got contexts.shape={tuple(contexts.shape)}."
        )
    check_finite("contexts", contexts)
    return list(contexts)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; a second one takes effect at once.

    Whatever handles SIGINT otherwise handles it then; by default it raises ``KeyboardInterrupt``.
    An exception of the block takes precedence. Outside the main thread, which alone is interrupted,
    and where SIGINT is ignored, nothing is deferred.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    deferred: list[tuple[int, FrameType | None]] = []

    def defer(number: int, frame: FrameType | None) -> None:
        deferred.append((number, frame))
        if len(deferred) > 1:
            deferred.clear()
            handler(number, frame)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if deferred:
        handler(*deferred[0])
