"""Objectives: a drifting problem, whose optimum is known, or any function of a trial."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.optimizers import Optimizer, Trial
from tvbo.test_functions.base import DriftingProblem
from tvbo.values import as_number

Number = float | Tensor
Numbers = Number | Mapping[str, Number]
TrialFunction = Callable[[Trial], Numbers | tuple[Numbers, Numbers]]
"""Returns the outcome of a trial, or the outcome and the variance of its noise; several outcomes by
name."""

Objective = DriftingProblem | TrialFunction

PlainNumbers = float | dict[str, float]
Outcome = tuple[PlainNumbers, PlainNumbers | None]
"""An outcome, and the variance of its noise where it is known, as plain numbers."""


class EvaluationError(Exception):
    """An evaluation that raised; the message says what.

    Unlike what was raised, it can be sent from one process to another.
    """


class ProblemFunction:
    """A drifting problem as a function of a trial: at its action, time and context."""

    def __init__(self, problem: DriftingProblem):
        self.problem = problem

    def __call__(self, trial: Trial) -> Numbers:
        """Return the outcome, with noise."""
        return self.problem.observe(self._row(trial))

    def score(self, trial: Trial) -> tuple[float, float]:
        """Return the true value of the action, and the best one at that time in that context."""
        value = self.problem.scored_value(self._row(trial))
        return value, self.problem.optimal_value(trial.t, trial.context)

    def _row(self, trial: Trial) -> Tensor:
        return self.problem.layout.rows(trial.X, trial.t, trial.context)

    def __getstate__(self) -> dict[str, Any]:
        if self.problem.noise_variance > 0:
            raise TypeError(
                "Expected a problem without noise, or threads: in other processes each copy of its "
                f"generator draws the same noise. Got noise_variance={self.problem.noise_variance}."
            )
        return self.__dict__


def as_function(objective: Objective, optimizer: Optimizer) -> TrialFunction:
    """Return an objective as a function of a trial.

    Raises:
        TypeError: if it is neither a problem nor callable.
        ValueError: if it is a problem, which is to be maximized, and the optimizer minimizes.
    """
    if isinstance(objective, DriftingProblem):
        if optimizer.minimize:
            raise ValueError(
                "Expected an optimizer that maximizes, as regret on a DriftingProblem is counted "
                "from its largest value. Got one with minimize=True."
            )
        return ProblemFunction(objective)
    if not callable(objective):
        raise TypeError(f"Expected a DriftingProblem or a function of a trial. Got {objective!r}.")
    return objective


def evaluate(function: TrialFunction, trial: Trial) -> Outcome:
    """Return the outcome of a trial and the variance of its noise, as plain numbers.

    Raises:
        InputDataError: if the outcome, or the variance, is no finite number, or that is negative.
        BotorchTensorDimensionError: if it is not one number, or one of each name.
    """
    outcome = function(trial)
    Y, Yvar = outcome if isinstance(outcome, tuple) else (outcome, None)
    return _numbers("Y", Y, -math.inf), None if Yvar is None else _numbers("Yvar", Yvar, 0.0)


def evaluate_by_worker(
    function: TrialFunction, trial: bytes, begun: Callable[[], None] | None = None
) -> Outcome | EvaluationError | KeyboardInterrupt:
    """Return what :func:`evaluate` returns or, so that an executor sees no error, raises.

    What the objective raises may be no exception that can be pickled and unpickled, or one that
    means something to the executor: then it would break it, or be taken for the executor's own.

    Args:
        function: The objective.
        trial: The trial, pickled.
        begun: Says that the evaluation has begun.
    """
    try:
        if begun is not None:
            # A run that is over has removed where to say so.
            with suppress(OSError):
                begun()
        return evaluate(function, pickle.loads(trial))
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except BaseException as error:  # Such as SystemExit.
        return EvaluationError(type_and_text(error))


def type_and_text(error: BaseException) -> str:
    """Return what an error says, of one that cannot say it its type."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except BaseException:
        return name


def _numbers(name: str, value: Numbers, least: float) -> PlainNumbers:
    if isinstance(value, Mapping):
        return {str(key): _finite(str(key), number, least) for key, number in value.items()}
    return _finite(name, value, least)


def _finite(name: str, value: Number, least: float) -> float:
    number = as_number(name, value)
    if not (math.isfinite(number) and number >= least):
        above = "" if least == -math.inf else f" >= {least:g}"
        raise InputDataError(f"Expected a finite number{above} for {name}. Got {number}.")
    return number
