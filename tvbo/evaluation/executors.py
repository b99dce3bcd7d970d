"""Executors of trials: what a run submits to, and the one of simulated delays."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from tvbo.evaluation.objective import (
    EvaluationError,
    Told,
    TrialFunction,
    evaluate,
    type_and_text,
)
from tvbo.optimizers import Trial

OnError = Literal["raise", "fail"]


def isolates(on_error: OnError) -> bool:
    """Return whether an evaluation that goes wrong fails its trial.

    Raises:
        ValueError: if it is neither ``"raise"`` nor ``"fail"``.
    """
    if on_error not in get_args(OnError):
        raise ValueError(f"Expected on_error 'raise' or 'fail'. Got {on_error!r}.")
    return on_error == "fail"


@dataclass(eq=False)
class Evaluation:
    """A trial that was submitted.

    Args:
        trial: The trial, with the context of its round.
        future: Done once the outcome has arrived.
        submitted: When it was submitted, on the clock ``time.perf_counter``.
        begun: When its evaluation was seen to have begun, if it has.
        ended: When its evaluation ended, if it has.
        expired: Why its outcome is waited for no longer; empty if it is.
    """

    trial: Trial
    future: Future[Any]
    submitted: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    ended: float | None = None
    expired: str = ""

    @property
    def seconds(self) -> float:
        """Time from submitting to the result, or until now."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.submitted


class TrialExecutor(Protocol):
    """What a run submits its trials to."""

    max_pending: int
    """Number of evaluations that may be under way."""

    isolates_errors: bool
    """Whether an evaluation that goes wrong fails its trial; otherwise it ends the run."""

    @property
    def room(self) -> int:
        """Number of trials that may be submitted now."""

    @property
    def awaits(self) -> bool:
        """Whether an outcome is still to be waited for."""

    def submit(self, trial: Trial) -> None:
        """Have a trial evaluated."""

    def wait(self) -> None:
        """Wait until an evaluation may have ended. Ctrl-C may take effect here, at any moment."""

    def completed(self, t: float | None) -> Iterator[Evaluation]:
        """Yield the evaluations whose outcomes have arrived or are waited for no longer, in order.

        Args:
            t: Time of the ask that comes next; None for the optimizer's count, or if none does.
        """

    def withdraw(self) -> list[Evaluation]:
        """Cancel what has not begun, and return all evaluations that are still waited for."""


class SimulatedExecutor:
    """Evaluate in the calling thread; the outcomes arrive at simulated times.

    An ask knows the outcomes that arrived before it. An outcome that arrives at the very time of an
    ask comes just after that ask, so it is told before the next one, also where that has the same
    time.

    Args:
        function: The objective.
        delay: Returns how long after ``trial.t`` the outcome arrives; None for 0.
        rounding: Difference up to which two times are one.
        isolates_errors: Whether an evaluation that raises fails its trial.
    """

    max_pending = 1

    def __init__(
        self,
        function: TrialFunction,
        delay: Callable[[Trial], float] | None,
        rounding: float,
        isolates_errors: bool,
    ):
        self.isolates_errors = isolates_errors
        self._function = function
        self._delay = delay
        self._rounding = rounding
        self._now = -math.inf
        self._submitted: Evaluation | None = None
        self._coming: list[tuple[float, int, Evaluation, Told | EvaluationError]] = []

    @property
    def room(self) -> int:
        """1 if the trial submitted last was evaluated."""
        return int(self._submitted is None)

    @property
    def awaits(self) -> bool:
        """Whether an outcome is to come by the time of the last ask."""
        arrives = bool(self._coming) and self._coming[0][0] <= self._now + self._rounding
        return arrives or self._submitted is not None

    def submit(self, trial: Trial) -> None:
        """Note a trial; the next :meth:`wait` evaluates it."""
        self._submitted = Evaluation(trial, Future())

    def wait(self) -> None:
        """Evaluate the trial that was submitted.

        Raises:
            Exception: what its evaluation raises, unless errors are isolated.
            ValueError: if its delay is negative.
        """
        evaluation = self._submitted
        if evaluation is None:
            return
        evaluation.submitted = time.perf_counter()
        outcome: Told | EvaluationError
        try:
            outcome = evaluate(self._function, evaluation.trial)
        except Exception as error:
            if not self.isolates_errors:
                raise
            outcome = EvaluationError(type_and_text(error))
        evaluation.ended = time.perf_counter()
        trial = evaluation.trial
        lateness = 0.0 if self._delay is None else float(self._delay(trial))
        if not lateness >= 0:
            raise ValueError(f"Expected a delay >= 0. Got {lateness} for trial {trial.id}.")
        heapq.heappush(self._coming, (trial.t + lateness, trial.id, evaluation, outcome))
        self._submitted = None

    def completed(self, t: float | None) -> Iterator[Evaluation]:
        """Yield what arrives before an ask at ``t``; by the time of the last ask if None comes."""
        until = self._now + self._rounding
        if t is not None:
            until = max(until, t - self._rounding)
            self._now = t
        while self._coming and self._coming[0][0] <= until:
            _, _, evaluation, outcome = heapq.heappop(self._coming)
            evaluation.future.set_result(outcome)
            yield evaluation

    def withdraw(self) -> list[Evaluation]:
        """Return the evaluations whose outcomes have not arrived."""
        withdrawn = [evaluation for _, _, evaluation, _ in self._coming]
        if self._submitted is not None:
            withdrawn.append(self._submitted)
        self._coming, self._submitted = [], None
        return withdrawn
