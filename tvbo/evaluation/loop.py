"""The loop of every run: close the trials that ended, ask, submit, record."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from itertools import islice
from statistics import fmean

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.evaluation.executors import Evaluation, TrialExecutor
from tvbo.evaluation.history import History, Round
from tvbo.evaluation.interrupt import uninterrupted
from tvbo.evaluation.objective import EvaluationError, ProblemFunction, TrialFunction, collect
from tvbo.optimizers import GPOptimizer, Optimizer, Trial
from tvbo.optimizers.posterior_state import mean_and_variance
from tvbo.terminal import TrialProgress, visible
from tvbo.values import as_numbers

AHEAD = 0.25
"""Share of the time of an evaluation above which asks for all workers are made ahead."""

RECENT = 20
"""Number of asks and of evaluations whose mean time counts for that."""

Present = Callable[[], tuple[float | None, Tensor | None]]
"""Returns the time and the context of the ask that comes next."""


class Loop:
    """Ask, submit, and tell whatever has arrived, one step at a time.

    Ctrl-C takes effect between two steps, or while an evaluation is waited for. Whatever is pending
    when something goes wrong stays open in the optimizer.

    Args:
        optimizer: What is asked and told, in the calling thread only.
        function: The objective; a :class:`ProblemFunction` is scored.
        executor: Has it evaluated.
        history: Where the rounds are recorded.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        function: TrialFunction,
        executor: TrialExecutor,
        history: History,
    ):
        self._optimizer = optimizer
        self._score = function.score if isinstance(function, ProblemFunction) else None
        self._executor = executor
        self._history = history
        self._left = 0
        self._has_context = False
        # Open trials that wait for room, and the asks to make before outcomes are told.
        self._waiting: deque[Trial] = deque()
        self._batch = 0
        self._asking: deque[float] = deque(maxlen=RECENT)
        self._evaluating: deque[float] = deque(maxlen=RECENT)
        self._closing_seconds = 0.0
        self._newest = ""

    def run(
        self,
        num_trials: int,
        present: Present,
        bar: TrialProgress,
        resumed: Iterable[Trial] = (),
    ) -> None:
        """Have a number of trials evaluated.

        Args:
            num_trials: Their number, those resumed included.
            present: Called once before each ask.
            bar: Shows how many have ended.
            resumed: Open trials to begin with.

        Raises:
            BrokenExecutor: if the executor lost its workers.
        """
        history, ended_before = self._history, self._history.num_ended
        self._left = num_trials
        started = time.perf_counter()
        try:
            with uninterrupted():
                for trial in islice(resumed, num_trials):
                    self._begin(Round(trial, trial.context))
                self._submit_waiting()
            while self._left > 0 or self._waiting or self._executor.awaits:
                if self._num_wanted == 0:
                    self._executor.wait()
                with uninterrupted():
                    self._step(present)
                words = self._in_words() if bar.is_shown else ""
                bar.show(history.num_ended - ended_before, history.counts, words)
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
        else:
            self._stop()
        finally:
            history.slot_seconds += self._executor.max_pending * (time.perf_counter() - started)
            bar.show(history.num_ended - ended_before, history.counts)

    @property
    def _num_wanted(self) -> int:
        """Number of trials to ask for now."""
        wanted = self._executor.room + self._num_ahead - len(self._waiting)
        return max(0, min(self._left, wanted))

    @property
    def _num_ahead(self) -> int:
        """Number of trials to have ready for the workers that are busy; 0 where asking is fast."""
        workers = self._executor.max_pending
        # A context is that of the evaluation, and may be another one by then.
        if self._has_context or workers == 1 or not self._evaluating:
            return 0
        is_slow = workers * fmean(self._asking or [0.0]) > AHEAD * fmean(self._evaluating)
        return workers if is_slow else 0

    def _step(self, present: Present) -> None:
        """Close the trials that ended; ask for another one if there is room.

        Where asking is slow, several are asked for before outcomes are told: they share a fit.
        """
        self._submit_waiting()
        asks = self._num_wanted > 0
        t, context = present() if asks else (None, None)
        if asks:
            self._has_context = context is not None
        if not asks or self._batch == 0:
            started = time.perf_counter()
            for evaluation in self._executor.completed(t):
                self._close(evaluation)
            self._closing_seconds += time.perf_counter() - started
            self._submit_waiting()
            self._batch = (self._num_wanted if self._num_ahead else 1) if asks else 0
        if asks:
            self._batch -= 1
            self._begin(self._ask(t, context))
            self._submit_waiting()

    def _in_words(self) -> str:
        """Return the newest outcome, what was expected of the newest trial, and the drift."""
        words = [self._newest] if self._newest else []
        optimizer = self._optimizer
        model = optimizer.model if isinstance(optimizer, GPOptimizer) else None
        if model is not None:
            trial = self._history.rounds[-1].trial
            seen = trial.context if optimizer.layout.num_contexts else None
            row = optimizer.layout.rows(trial.X, trial.t, seen)
            mean, variance = mean_and_variance(model, row)
            mean = -mean if optimizer.minimize else mean
            words.append(f"expected {mean:.4g} ± {1.96 * variance**0.5:.2g}")
            rate = getattr(model, "forgetting_rate", None)
            words += [] if rate is None else [f"ε {float(rate):.2g}"]
        return ", ".join(words)

    def _ask(self, t: float | None, context: Tensor | None) -> Round:
        """Ask for a trial; an optimizer without contexts is not told that of the round."""
        started = time.perf_counter()
        now = self._optimizer.labels.stamp(t)
        trial = self._optimizer.ask(now, None if self._optimizer.contexts is None else context)
        seconds = time.perf_counter() - started
        closing_seconds, self._closing_seconds = self._closing_seconds, 0.0
        self._asking.append(closing_seconds + seconds)
        if trial.context is not None:
            # As the optimizer understood it: what single precision rounded is undone.
            context = trial.context
        elif context is not None:
            context = as_numbers("context", context)
        return Round(
            trial,
            context,
            model_size=self._optimizer.model_size,
            ask_seconds=seconds,
            seconds=closing_seconds + seconds,
        )

    def _begin(self, asked: Round) -> None:
        """Record a round; its trial waits for room, unless it is skipped."""
        trial = replace(asked.trial, context=asked.context)
        if self._score is not None:
            value, optimal_value = self._score(trial)
            asked = replace(asked, value=value, optimal_value=optimal_value)
        self._left -= 1
        self._history.begin(asked)
        if trial.skipped:
            self._history.end(trial, "skipped")
        else:
            self._waiting.append(trial)

    def _submit_waiting(self) -> None:
        """Submit the trials for which there is room."""
        while self._waiting and self._executor.room > 0:
            self._executor.submit(self._waiting.popleft())

    def _close(self, evaluation: Evaluation) -> None:
        """Tell the outcome of a trial, or that it failed or expired, and record it."""
        trial, seconds = self._history.round_of(evaluation.trial).trial, evaluation.seconds
        if evaluation.expired:
            self._optimizer.expire(trial, evaluation.expired)
            self._history.end(trial, "expired", seconds, reason=evaluation.expired)
            return
        try:
            Y, Yvar = collect(evaluation.future)
            self._optimizer.tell(trial, Y, Yvar)
        except (EvaluationError, InputDataError) as error:
            if not self._executor.isolates_errors:
                raise
            # What is refused would be refused again if the trial were evaluated again.
            self._optimizer.fail(trial, str(error))
            self._history.end(trial, "failed", seconds, reason=str(error))
        else:
            self._evaluating.append(seconds)
            names = self._optimizer.labels.outcome_columns
            outcomes = Y if isinstance(Y, dict) else {names[0]: Y}
            if isinstance(Yvar, dict):
                Yvar = Yvar[names[0]]
            self._history.end(
                trial,
                "told",
                seconds,
                reward=outcomes[names[0]],
                variance=Yvar,
                others={name: outcomes[name] for name in names[1:]},
            )
            self._newest = f"told {', '.join(f'{Y:.4g}' for Y in outcomes.values())}"

    def _stop(self, error: BaseException | None = None) -> None:
        """Cancel what has not begun, tell what has arrived, and leave the rest open."""
        for evaluation in self._executor.withdraw():
            trial, future = evaluation.trial, evaluation.future
            if not future.done() or future.cancelled():
                self._history.end(trial, "open", evaluation.seconds)
                continue
            try:
                with uninterrupted():
                    self._close(evaluation)
            except (BrokenExecutor, KeyboardInterrupt):
                # Not evaluated to the end.
                self._history.end(trial, "open", evaluation.seconds)
            except Exception as another:
                if error is None:
                    raise
                error.add_note(f"Then, of trial {trial.id}: {visible(str(another))}")
