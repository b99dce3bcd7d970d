"""Run an optimizer on a problem."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tvbo.history import History, Round
from tvbo.optimizers import Optimizer, Trial
from tvbo.problems.base import DriftingProblem
from tvbo.progress import progress_bar
from tvbo.validation import check_finite

SAME_TIME = 1e-12
"""Difference of two times, relative to the largest, up to which they are one time."""


def run(
    problem: DriftingProblem,
    optimizer: Optimizer,
    *,
    horizon: int,
    delay: Callable[[Trial], float] | None = None,
    times: Iterable[float] | None = None,
    contexts: Tensor | None = None,
    progress: bool = True,
    label: str | None = None,
) -> History:
    """Ask, observe, tell, record, for ``horizon`` rounds.

    A trial that the optimizer skips is not observed; its action is scored like any other.

    Args:
        problem: What is observed and how it is scored.
        optimizer: Asked once per round.
        horizon: Number of rounds.
        delay: Gives how long after ``trial.t`` its outcome arrives, in the unit of time. An ask
            knows the outcomes that arrived before it: one that arrives at the very time of an ask
            comes just after that ask, and is told before the next. So with times 1, 2, ... an
            outcome that is late by τ whole rounds is missing in τ asks; 0 is told before the next
            ask, and a fraction of a round adds none. This is the model of Vakili et al. (2023),
            where the choice of round t + 1 rests on the outcomes of rounds s with s + τ_s <= t.
            Infinity: it never arrives. None: 0 for all. See :mod:`tvbo.feedback` for delays to
            simulate.
        times: The time of each round, non-decreasing; default ``1, ..., horizon``. Where a time
            stands several times, so many actions are tried at it, one after another.
        contexts: The context of each round, ``horizon x c``; default what ``problem.context`` says.
            An optimizer that was declared without contexts is not told them.
        progress: Show a progress bar.
        label: What the bar says; default the name of the optimizer's class.

    Returns:
        The history. Outcomes of skipped trials are NaN in its rewards; those that had not arrived
        at the end, too, and they stay open in the optimizer.

    Raises:
        ValueError: if ``horizon`` is not positive, ``times`` does not give ``horizon`` times or
            ``contexts`` not as many contexts, the problem has contexts and none are given, or a
            delay is negative.
    """
    if horizon < 1:
        raise ValueError(f"Expected horizon >= 1 round. Got {horizon}.")
    times = [float(t) for t in (range(1, horizon + 1) if times is None else times)]
    if len(times) != horizon:
        raise ValueError(f"Expected {horizon} times. Got {len(times)}.")
    given = _contexts(problem, contexts, times)
    history = History()
    coming: list[tuple[float, int, Trial, float]] = []
    label = type(optimizer).__name__ if label is None else label
    rounds = list(zip(times, given, strict=True))
    # Sums such as 0.7 + 0.1 and 0.8 are one time, whichever way they are rounded.
    rounding = SAME_TIME * max(abs(t) for t in times)
    previous = -math.inf
    for t, context in progress_bar(rounds, label, shown=progress):
        started = time.perf_counter()
        # What arrived by the previous ask's time comes after that ask, also where this one has the
        # same time; what arrives at this one's time comes after this one.
        _tell_arrived(optimizer, history, coming, until=max(previous + rounding, t - rounding))
        previous = t
        trial = optimizer.ask(t, context=None if optimizer.contexts is None else context)
        seconds = time.perf_counter() - started
        # As the optimizer understood it: what single precision rounded is undone.
        context = context if trial.context is None else trial.context
        row = problem.layout.rows(trial.X, trial.t, context)
        evaluation_seconds = 0.0
        if not trial.skipped:
            started = time.perf_counter()
            reward = problem(row).item()
            evaluation_seconds = time.perf_counter() - started
            arrival = t + _checked_delay(delay, trial)
            heapq.heappush(coming, (arrival, len(history), trial, reward))
        history.rounds.append(
            Round(
                trial=trial,
                context=context,
                reward=math.nan,
                value=problem.evaluate_true(row).item(),
                optimal_value=problem.optimal_value(t, context),
                model_size=optimizer.model_size,
                seconds=seconds,
                evaluation_seconds=evaluation_seconds,
            )
        )
    _tell_arrived(optimizer, history, coming, until=previous + rounding)
    return history


def _contexts(
    problem: DriftingProblem, contexts: Tensor | None, times: Sequence[float]
) -> list[Tensor | None]:
    """The context of each round, None where the problem has none."""
    width = problem.layout.num_contexts
    if contexts is None:
        given = [problem.context(t) for t in times]
        if width and any(context is None for context in given):
            raise ValueError(
                f"Expected contexts ({len(times)} x {width}), since the problem has contexts and "
                "does not fix them by time. Got none."
            )
        return given
    contexts = torch.as_tensor(contexts, dtype=torch.float64)
    if contexts.shape != (len(times), width):
        raise ValueError(
            f"Expected contexts of shape {len(times)} x {width}. "
            f"Got contexts.shape={tuple(contexts.shape)}."
        )
    check_finite("contexts", contexts)
    return list(contexts)


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
