"""One evaluation in a worker, and what comes back from it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from tvbo.optimizers.trial import Trial

Outcome = float | Tensor | tuple[float | Tensor, float | Tensor]
ProblemFunction = Callable[[Trial], Outcome]
"""Gives the outcome of a trial, or the outcome and the variance of its noise."""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation gave.

    Args:
        Y: The outcome; NaN where there is none.
        Yvar: Variance of its noise, where known.
        fault: Why it is none to be told; empty if it is.
    """

    Y: float = math.nan
    Yvar: float | None = None
    fault: str = ""


def check_executor(executor: Executor, problem_function: ProblemFunction) -> None:
    """Raise unless the executor is one, and can be sent the function.

    Raises:
        TypeError: if not.
    """
    if not isinstance(executor, Executor):
        raise TypeError(
            "Expected an executor of concurrent.futures; that of a Dask client is "
            f"client.get_executor(pure=False). Got {type(executor).__name__}."
        )
    if isinstance(executor, ProcessPoolExecutor):
        try:
            pickle.dumps(problem_function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                "Expected a problem_function that can be sent to other processes, such as a "
                f"function of a module. Got {problem_function!r}: {error}."
            ) from error


def submit(executor: Executor, problem_function: ProblemFunction, trial: Trial) -> Future:
    """Have a trial evaluated; :func:`collect` takes the future."""
    # Bytes, since a tensor as it is would pass through shared memory of its own.
    return executor.submit(_evaluate, problem_function, pickle.dumps(trial))


def collect(future: Future) -> Evaluated:
    """What came of a trial, once its future is done.

    Raises:
        BrokenExecutor: if the trial was not evaluated, which is no fault of its own.
        KeyboardInterrupt: if the worker was interrupted.
    """
    if future.cancelled():
        raise BrokenExecutor("an evaluation was cancelled there.")
    error = future.exception()
    if isinstance(error, (BrokenExecutor, KeyboardInterrupt)):
        raise error
    if isinstance(error, CancelledError):
        raise BrokenExecutor("an evaluation was cancelled there.") from error
    if error is not None:
        return Evaluated(fault=f"{type(error).__name__}: {error}")
    Y, Yvar = future.result()
    if not math.isfinite(Y):
        return Evaluated(fault=f"Expected a finite outcome. Got {Y}.")
    if Yvar is not None and not 0 <= Yvar < math.inf:
        return Evaluated(fault=f"Expected a variance of the noise, 0 or above. Got {Yvar}.")
    return Evaluated(Y, Yvar)


def _evaluate(problem_function: ProblemFunction, trial: bytes) -> tuple[float, float | None]:
    """An outcome as plain numbers, in the worker."""
    outcome = problem_function(pickle.loads(trial))
    Y, Yvar = outcome if isinstance(outcome, tuple) else (outcome, None)
    return _number(Y), None if Yvar is None else _number(Yvar)


def _number(value: float | Tensor) -> float:
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.numel() != 1:
        raise ValueError(
            "Expected one number, or a tuple of an outcome and the variance of its noise. "
            f"Got shape {tuple(value.shape)}."
        )
    return value.item()
