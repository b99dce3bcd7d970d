"""A whole run with delayed outcomes: tvbo, and a dense solve in each round in NumPy.

The setting of Vakili et al. (2023), Section 7: T = 1000, 2,500 arms, Poisson delays of mean 50. The
plain form takes the covariance of the points in the model, solves for all arms, and computes mean
and standard deviation from that, in each round from scratch. The covariance of all arms is given.
It may leave out the arms that BPE-Delay has eliminated, which is measured as well.

Both are timed in turns, 50 rounds of the same run each, with one thread, ours after a short run to
warm up. The plain form computes its own choice and then continues with that of tvbo; the table
gives the largest difference of their values, which is rounding.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/delayed_round.py \
        --json docs/results/delayed_round.json
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.progress import track
from shared import parser, show

from experiments.problems.rkhs import RKHSFunction
from experiments.vakili.setting import (
    BPE_DELAY,
    DELTA,
    MULTIPLIER,
    NOISE_VARIANCE,
    PLAYERS,
    XI,
    B,
    Setting,
    Task,
    function,
    poisson_delay,
)
from tvbo.optimizers import Optimizer
from tvbo.optimizers.bpe import SubExponentialDelay

RATE = 50
TURN = 50
WARM_UP = 100
NEAR = 1e-6
"""Largest difference of two values by rounding."""


class Plain:
    """BPE-Delay with a dense solve in each round.

    Args:
        gram: Covariance of the arms, ``n x n``.
        horizon: T.
        survivors_only: Whether to leave out the eliminated arms.
    """

    def __init__(self, gram: np.ndarray, horizon: int, survivors_only: bool):
        self.gram = gram
        self.chosen: list[int] = []
        self.outcomes: dict[int, float] = {}
        self.horizon = horizon
        self.survivors_only = survivors_only
        self.wait = SubExponentialDelay(RATE, XI, B).upper_bound(horizon, DELTA)
        self.alive = np.ones(len(gram), dtype=bool)
        self.q, self.start = 1, 0
        self.end = self._end()

    def solve(self, places: list[int], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights of outcomes of some rounds, ``m x n``, and standard deviations, ``n``."""
        arms = [self.chosen[place] for place in places]
        covar = self.gram[np.ix_(arms, arms)] + NOISE_VARIANCE * np.eye(len(arms))
        cross = self.gram[np.ix_(arms, at)]
        weights = np.linalg.solve(covar, cross)
        variance = self.gram[at, at] - (weights * cross).sum(axis=0)
        return weights, np.sqrt(np.maximum(variance, 0))

    def _end(self) -> int:
        self.q = int(np.ceil(np.sqrt(self.horizon * self.q)))
        return min(self.horizon, self.start + int(np.ceil(self.q + self.wait)))

    def values(self) -> np.ndarray:
        """Return the standard deviations of the surviving arms, by the points of this round."""
        if len(self.chosen) == self.end:
            self._drop()
            self.start = self.end
            self.end = self._end()
        everywhere = np.arange(len(self.gram))
        at = np.flatnonzero(self.alive) if self.survivors_only else everywhere
        deviation = np.full(len(self.gram), -np.inf)
        deviation[at] = self.solve(list(range(self.start, len(self.chosen))), at)[1]
        deviation[~self.alive] = -np.inf
        return deviation

    def _drop(self) -> None:
        arrived = [place for place in range(self.start, self.end) if place in self.outcomes]
        weights, deviation = self.solve(arrived, np.arange(len(self.gram)))
        mean = np.array([self.outcomes[place] for place in arrived]) @ weights
        lower = mean - MULTIPLIER * deviation
        self.alive &= mean + MULTIPLIER * deviation >= lower[self.alive].max()


def race(name: str, horizon: int) -> tuple[RKHSFunction, Optimizer, Plain]:
    """Return the function f1, and both forms of BPE-Delay."""
    problem = function(Setting(horizon=horizon), "f1", torch.Generator().manual_seed(0))
    ours = PLAYERS[BPE_DELAY](Task(problem, RATE, horizon, torch.Generator().manual_seed(1)))
    with torch.no_grad():
        gram = problem.covar_module(problem.choices).to_dense().numpy()
    return problem, ours, Plain(gram, horizon, name != "BPE-Delay")


@dataclass(frozen=True)
class Step:
    """A step for the plain form to follow: outcomes that arrived, by round, and the arm chosen."""

    arrived: list[tuple[int, float]]
    arm: int


class Ours:
    """A run of tvbo.

    Args:
        problem: The problem.
        optimizer: The optimizer.
    """

    def __init__(self, problem: RKHSFunction, optimizer: Optimizer):
        self.problem, self.optimizer = problem, optimizer
        self.delay = poisson_delay(RATE)
        self.where = {tuple(x): arm for arm, x in enumerate(problem.choices.tolist())}
        self.coming: dict[int, list] = {}
        self.seconds = 0.0

    def step(self, t: int) -> Step:
        """Run a round."""
        arrived = self.coming.pop(t, [])
        started = time.perf_counter()
        for trial, outcome in arrived:
            self.optimizer.tell(trial, outcome)
        trial = self.optimizer.ask(t)
        self.seconds += time.perf_counter() - started
        # It is pending in that many asks, and told before the next one, as in `run`.
        due = t + 1 + round(self.delay(trial))
        outcome = self.problem(self.problem.layout.rows(trial.X, trial.t)).item()
        self.coming.setdefault(due, []).append((trial, outcome))
        told = [(trial.id - 1, outcome) for trial, outcome in arrived]
        return Step(told, self.where[tuple(trial.X[0].tolist())])


def follow(plain: Plain, step: Step) -> tuple[bool, float, float]:
    """Run a round of the plain form.

    Returns:
        Whether its own choice differs, by how much its value is larger, and the seconds.
    """
    started = time.perf_counter()
    plain.outcomes.update(step.arrived)
    values = plain.values()
    own = int(values.argmax())
    seconds = time.perf_counter() - started
    plain.chosen.append(step.arm)
    return own != step.arm, float(values[own] - values[step.arm]), seconds


def measure(name: str, horizon: int) -> dict[str, float]:
    """Run both forms, alternating."""
    problem, optimizer, _ = race(name, WARM_UP)
    warm = Ours(problem, optimizer)
    for t in range(1, WARM_UP + 1):
        warm.step(t)
    problem, optimizer, plain = race(name, horizon)
    ours = Ours(problem, optimizer)
    steps, followed = [], []
    for first in track(range(1, horizon + 1, TURN), name):
        turn = [ours.step(t) for t in range(first, min(first + TURN, horizon + 1))]
        steps += turn
        followed += [follow(plain, step) for step in turn]
    differing, gaps, seconds = torch.tensor(followed, dtype=torch.float64).unbind(-1)
    taken = problem.values[[step.arm for step in steps]]
    return {
        "ours_seconds": ours.seconds,
        "plain_seconds": seconds.sum().item(),
        "ratio": seconds.sum().item() / ours.seconds,
        "largest_shortfall": gaps.max().item(),
        "choices_that_differ": int(differing.sum()),
        "choices_beyond_rounding": int((gaps > NEAR).sum()),
        "regret": (problem.optimal_value(0.0) - taken).sum().item(),
    }


def main() -> None:
    """Run the benchmark and print a table."""
    options = parser(__doc__, horizon=1000).parse_args()
    torch.set_num_threads(1)
    names = ("BPE-Delay", "BPE-Delay, plain on survivors only")
    records = [{"algorithm": name} | measure(name, options.horizon) for name in names]
    columns = {
        "algorithm": "{algorithm}",
        "ours": "{ours_seconds:.2f}",
        "plain": "{plain_seconds:.1f}",
        "times faster": "{ratio:.0f}",
        "other choices": "{choices_that_differ}",
        "short by at most": "{largest_shortfall:.1e}",
    }
    title = f"A run of T = {options.horizon}, 2,500 arms, seconds of choosing and learning"
    show(title, columns, records, options.json)


if __name__ == "__main__":
    main()
