"""One run of a method on a problem, in rounds or against the clock.

In rounds, times are 1, ..., 80, and every method makes as many evaluations. Against the clock, an
evaluation takes some seconds, and the problem drifts while a method computes: 80 units of its time
are ``max(60, 80 x evaluation)`` seconds, of which the CPU seconds that were measured and those of
the evaluations are spent. An evaluation takes at least a thousandth of the span, which ends the
runs of methods without own cost.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from methods import INITIAL, METHODS, Method
from torch import Generator, Tensor

from experiments.problems.dynamic_problems import dynamic_problems
from experiments.problems.fresh_problems import fresh_problems
from experiments.problems.moving_functions import DriftingFeatures
from tvbo.test_functions import DriftingProblem

HORIZON = 80
NOISE_VARIANCE = 0.05
SHORTEST_SPAN = 60.0
"""Seconds that the horizon lasts at least, against the clock."""
MOST_ROUNDS = 1_000
"""Number of the shortest evaluations in a span."""
SPACING = 0.1
"""Distance of the times at which the standing action is evaluated."""
LAST = 20
"""Number of the last rounds whose CPU seconds are reported."""


@dataclass(frozen=True)
class Job:
    """A run: a problem, a method, a seed, and the seconds of an evaluation or None for rounds."""

    problem: str
    method: str
    seed: int
    evaluation: float | None = None


def make_problems(seed: int) -> dict[str, DriftingProblem]:
    """Return the problems by name."""
    found: dict[str, DriftingProblem] = {}
    for problems in (dynamic_problems, fresh_problems):
        found |= problems(HORIZON, NOISE_VARIANCE, Generator().manual_seed(seed))
    return found


class Game:
    """A problem with the initial points and the noise that all methods of a seed share."""

    def __init__(self, problem: str, seed: int):
        self.problem = make_problems(seed)[problem]
        self.generator = Generator().manual_seed(crc32(f"{problem} {seed}".encode()))
        low, high = self.problem.bounds
        unit = torch.rand(INITIAL, len(low), dtype=torch.float64, generator=self.generator)
        self.start = low + (high - low) * unit

    def regret(self, X: Tensor, t: float) -> float:
        """Return the regret of the action ``1 x d``."""
        return self.problem.optimal_value(t) - self._value(X, t)

    def mean_regret(self, X: Tensor, begun: Tensor, first: float) -> float:
        """Return the average over time of the regret of actions that stood until the next began.

        Args:
            X: The actions, ``n x d``.
            begun: The times from which they stood, ``n``, ascending.
            first: The time from which on regret counts.
        """
        count = math.ceil((HORIZON - first) / SPACING)
        times = first + (HORIZON - first) * (torch.arange(count, dtype=torch.float64) + 0.5) / count
        standing = X[torch.searchsorted(begun, times, right=True) - 1]
        values = self.problem.evaluate_true(self._rows(standing, times))
        # The optimum is searched for, so it is known on a coarser grid, the same for all methods.
        whole = range(math.ceil(first), HORIZON + 1)
        optimal = torch.tensor([self.problem.optimal_value(t) for t in whole], dtype=torch.float64)
        return (torch.trapezoid(optimal).item() / (len(whole) - 1)) - values.mean().item()

    def observe(self, X: Tensor, t: float) -> float:
        """Return the value of the action ``1 x d`` with the noise of the next round."""
        if (own := getattr(self.problem, "noise", None)) is not None:
            noise = own(X, self.generator).item()
        else:
            noise = torch.randn((), dtype=torch.float64, generator=self.generator).item()
        return self._value(X, t) + math.sqrt(NOISE_VARIANCE) * noise

    def ask(self, method: Method, n: int, t: float) -> tuple[Tensor, float]:
        """Return the action of round ``n`` from 0, ``1 x d``, and the CPU seconds it took.

        Raises:
            ValueError: if the action is not in the box.
        """
        if n < INITIAL:
            return self.start[n : n + 1], 0.0
        began = time.process_time()
        X = method.ask(t)
        seconds = time.process_time() - began
        low, high = self.problem.bounds
        if X.shape != (1, len(low)) or not ((low <= X) & (high >= X)).all():
            raise ValueError(f"Expected an action 1 x {len(low)} in the box. Got {X.tolist()}.")
        return X, seconds

    def tell(self, method: Method, X: Tensor, t: float) -> float:
        """Tell a method the outcome of an action, return the CPU seconds it took."""
        Y = self.observe(X, t)
        began = time.process_time()
        method.tell(X, t, Y)
        return time.process_time() - began

    def _value(self, X: Tensor, t: float) -> float:
        return self.problem.evaluate_true(
            self._rows(X, torch.tensor([t], dtype=torch.float64))
        ).item()

    def _rows(self, X: Tensor, times: Tensor) -> Tensor:
        """Return rows ``n x (d + 1)``; a problem in whole times stands still in between."""
        times = times.round() if isinstance(self.problem, DriftingFeatures) else times
        return torch.cat([X, times.unsqueeze(-1)], dim=-1)


def play(job: Job) -> dict[str, Any]:
    """Return the record of a run; an exception of the method ends it and is part of the record."""
    game = Game(job.problem, job.seed)
    record = {**vars(job), "error": None, "model_size": None, "regret": [], "seconds": []}
    try:
        method = METHODS[job.method](game.problem.bounds, job.seed)
        if job.evaluation is None:
            _play_rounds(game, method, record)
        else:
            _play_clock(game, method, record, job.evaluation)
        record["model_size"] = method.model_size
    except Exception as error:
        record["error"] = f"round {len(record['seconds']) + 1}: {type(error).__name__}: {error}"
    record["rounds"] = len(record["seconds"])
    if job.evaluation is not None:
        record["seconds"] = record["seconds"][-LAST:]
    record["regret"] = [round(value, 4) for value in record["regret"]]
    record["seconds"] = [round(value, 4) for value in record["seconds"]]
    return record


def _play_rounds(game: Game, method: Method, record: dict[str, Any]) -> None:
    for n in range(HORIZON):
        t = n + 1.0
        X, asked = game.ask(method, n, t)
        told = game.tell(method, X, t)
        record["regret"].append(game.regret(X, t))
        record["seconds"].append(asked + told)


def _play_clock(game: Game, method: Method, record: dict[str, Any], evaluation: float) -> None:
    """Play until the span is over; ``regret`` is one number, the average over time.

    An action stands from the start of its evaluation to that of the next, and grows old while its
    method computes. Counted is the time after the initial evaluations.
    """
    span = max(SHORTEST_SPAN, HORIZON * evaluation)
    step = max(evaluation, span / MOST_ROUNDS)
    unit = HORIZON / span
    elapsed, actions, begun = 0.0, [], []
    while elapsed < span:
        X, asked = game.ask(method, len(begun), elapsed * unit)
        elapsed += asked
        if elapsed >= span:
            break
        actions.append(X)
        begun.append(elapsed * unit)
        told = game.tell(method, X, begun[-1])
        elapsed += step + told
        record["seconds"].append(asked + told)
    first = INITIAL * step * unit
    record["regret"] = [
        game.mean_regret(torch.cat(actions), torch.tensor(begun, dtype=torch.float64), first)
    ]
