"""Run an optimizer on a problem."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from tvbo.history import History, Round
from tvbo.optimizers import Optimizer, Trial
from tvbo.problems.base import DriftingProblem

T = TypeVar("T")


def run(
    problem: DriftingProblem,
    optimizer: Optimizer,
    *,
    horizon: int,
    delay: Callable[[Trial], float] | None = None,
    times: Iterable[float] | None = None,
    progress: bool = True,
    label: str | None = None,
) -> History:
    """Ask, observe, tell, record, for ``horizon`` rounds.

    Args:
        problem: What is observed and how it is scored.
        optimizer: Asked once per round.
        horizon: Number of rounds.
        delay: Gives how long after ``trial.t`` its outcome arrives, in the unit of time; it is told
            before the first ask at or after its arrival. None: told at once.
        times: The time of each round, non-decreasing; default ``1, ..., horizon``.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Returns:
        The history. Outcomes that had not arrived at the end are NaN in its rewards and stay open
        in the optimizer.

    Raises:
        ValueError: if ``horizon`` is not positive, ``times`` does not give ``horizon`` times, or a
            delay is negative.
    """
    if horizon < 1:
        raise ValueError(f"Expected horizon >= 1 round. Got {horizon}.")
    times = [float(t) for t in (range(1, horizon + 1) if times is None else times)]
    if len(times) != horizon:
        raise ValueError(f"Expected {horizon} times. Got {len(times)}.")
    history = History()
    coming: list[tuple[float, int, Trial, float]] = []
    label = type(optimizer).__name__ if label is None else label
    for t in progress_bar(times, label, shown=progress):
        started = time.perf_counter()
        _tell_arrived(optimizer, history, coming, until=t)
        trial = optimizer.ask(t)
        seconds = time.perf_counter() - started
        row = optimizer.columns.rows(trial.X, trial.t, trial.context)
        reward = problem(row).item()
        arrival = t + _checked_delay(delay, trial)
        heapq.heappush(coming, (arrival, len(history), trial, reward))
        history.rounds.append(
            Round(
                trial=trial,
                reward=math.nan,
                value=problem.evaluate_true(row).item(),
                optimal_value=problem.optimal_value(t, trial.context),
                model_size=optimizer.model_size,
                seconds=seconds,
            )
        )
    _tell_arrived(optimizer, history, coming, until=times[-1])
    return history


def progress_bar(steps: Sequence[T], label: str, shown: bool) -> Iterable[T]:
    """The steps, with a progress bar on stderr, where it does not mix with results."""
    return track(steps, description=label, console=Console(stderr=True), disable=not shown)


def _checked_delay(delay: Callable[[Trial], float] | None, trial: Trial) -> float:
    lateness = 0.0 if delay is None else float(delay(trial))
    if not lateness >= 0:
        raise ValueError(f"Expected a delay >= 0. Got {lateness} for trial {trial.id}.")
    return lateness


def _tell_arrived(
    optimizer: Optimizer,
    history: History,
    coming: list[tuple[float, int, Trial, float]],
    until: float,
) -> None:
    """Tell every outcome that arrives by ``until``, in the order of arrival."""
    while coming and coming[0][0] <= until:
        _, place, trial, reward = heapq.heappop(coming)
        optimizer.tell(trial, reward)
        history.rounds[place] = replace(history.rounds[place], reward=reward)
