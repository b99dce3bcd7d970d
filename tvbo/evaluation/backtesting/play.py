"""Play algorithms on recorded values: fit each on a training stretch, then ask it time by time."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace
from tvbo.terminal import patient_steps
from tvbo.threads import threads_for

Algorithm = Callable[[Tensor, Tensor, Generator], Optimizer]
"""Makes an optimizer of a training stretch: its values, ``T x n`` with NaN where there is none, its
times, ``T``, and a source of randomness. The optimizer's choices are the ``n`` arms in their order.
An attribute ``label`` of the callable, if there is one, names it in the verdict."""

MIN_TRAIN_TIMES = 3
"""Fewest times of a training stretch."""


@dataclass(frozen=True)
class Fold:
    """Rows of a panel to train on, and later ones to play.

    Args:
        train: Rows of the training stretch.
        test: Rows that are played.

    Raises:
        ValueError: if a stretch has steps or is empty, training is too short, or the stretches
            overlap or stand in the wrong order.
    """

    train: range
    test: range

    def __post_init__(self) -> None:
        if self.train.step != 1 or self.test.step != 1 or self.train.start < 0:
            raise ValueError(f"Expected rows without steps, from 0. Got {self}.")
        if len(self.train) < MIN_TRAIN_TIMES:
            raise ValueError(
                f"Expected a training stretch of at least {MIN_TRAIN_TIMES} times. "
                f"Got {len(self.train)}, rows {_rows(self.train)}."
            )
        if not self.test:
            raise ValueError(
                f"Expected rows to play after the training stretch, {_rows(self.train)}. Got none."
            )
        if self.test.start < self.train.stop:
            raise ValueError(
                "Expected a test stretch that begins after its training stretch. Got rows "
                f"{_rows(self.test)} to play and {_rows(self.train)} for training."
            )


def rolling_folds(train: range, test: range, count: int) -> list[Fold]:
    """Return folds that move through the rows: as many rows of training before each test stretch.

    Args:
        train: Training rows of the first fold; those of the others are as many, further on.
        test: Rows to play, which are divided among the folds.
        count: Number of folds.

    Raises:
        ValueError: if ``count`` is not positive or above the number of rows to play, or a stretch
            is not as in :class:`Fold`.
    """
    whole = Fold(train, test)
    if not 1 <= count <= len(test):
        raise ValueError(f"Expected from 1 to {len(test)} folds, a row each. Got {count}.")
    bounds = [len(test) * i // count for i in range(count + 1)]
    return [
        Fold(
            range(whole.train.start + first, whole.train.stop + first),
            range(whole.test.start + first, whole.test.start + last),
        )
        for first, last in pairwise(bounds)
    ]


def check_apart(folds: Sequence[Fold]) -> None:
    """Raise unless no row is played in two folds.

    Raises:
        ValueError: if one is, or there are no folds.
    """
    if not folds:
        raise ValueError("Expected at least one fold. Got none.")
    in_order = sorted(folds, key=lambda fold: fold.test.start)
    for one, other in pairwise(in_order):
        if other.test.start < one.test.stop:
            raise ValueError(
                "Expected folds whose test stretches do not overlap. Got rows "
                f"{_rows(one.test)} and {_rows(other.test)}."
            )


@dataclass(frozen=True)
class Stretch:
    """What is known when playing begins, and what is then met.

    Args:
        train_values: ``T x n``; NaN where there is none.
        train_times: ``T``.
        outcomes: Outcome of each arm at each time that is played, ``S x n``; NaN where there is no
            reading.
        times: Times that are played, ``S``.
        truth: Values that regret is measured by, ``S x n``; None for ``outcomes``.
    """

    train_values: Tensor
    train_times: Tensor
    outcomes: Tensor
    times: Tensor
    truth: Tensor | None = None


@dataclass(frozen=True)
class Played:
    """What was played, by the name of the algorithm.

    Args:
        regret: ``starts x S`` over all stretches, one after another; NaN where the chosen arm had
            no reading.
        arms: Index of the chosen arm, ``starts x S``.
        optimizers: The optimizer of each stretch, as it was before it was asked.
    """

    regret: dict[str, Tensor]
    arms: dict[str, Tensor]
    optimizers: dict[str, list[Optimizer]]


def play(
    stretches: Sequence[Stretch],
    algorithms: Mapping[str, Algorithm],
    seeds: range,
    progress: bool,
    executor: Executor | None,
) -> Played:
    """Fit each algorithm on each stretch, and play it from several starts.

    Args:
        stretches: The stretches.
        algorithms: Factories by name, called once for each stretch, in this process.
        seeds: Seeds of the starts.
        progress: Show progress bars on stderr.
        executor: Executor that runs the starts; None runs them serially.
    """
    optimizers: dict[str, list[Optimizer]] = {name: [] for name in algorithms}
    with patient_steps([*algorithms] * len(stretches), "fitting", progress) as begin:
        # One stretch after another, so that factories may share what they fit to it.
        for stretch in stretches:
            for name, make in algorithms.items():
                begin(name)
                generator = Generator().manual_seed(seeds.start)
                made = make(stretch.train_values, stretch.train_times, generator)
                optimizers[name].append(_checked(made, name, stretch.outcomes.shape[1]))
    jobs = [
        (name, start, i) for name in algorithms for start in seeds for i in range(len(stretches))
    ]
    regret: dict[str, list[list[Tensor]]] = {name: [[] for _ in seeds] for name in algorithms}
    arms = deepcopy(regret)
    runs = _runs([(optimizers[name][i], stretches[i], seed) for name, seed, i in jobs], executor)
    with patient_steps([name for name, _, _ in jobs], "playing", progress) as begin:
        for name, seed, _ in jobs:
            begin(name)
            chosen, lost = next(runs)
            arms[name][seed - seeds.start].append(chosen)
            regret[name][seed - seeds.start].append(lost)

    def joined(parts: dict[str, list[list[Tensor]]]) -> dict[str, Tensor]:
        return {name: torch.stack([torch.cat(s) for s in starts]) for name, starts in parts.items()}

    return Played(joined(regret), joined(arms), optimizers)


def _runs(
    jobs: Sequence[tuple[Optimizer, Stretch, int]], executor: Executor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the chosen arms and the regret of each job, in order."""
    if executor is None:
        for job in jobs:
            yield play_once(*job)
        return
    # Bytes, since tensors as they are would pass through shared memory, one open file for each.
    futures = [executor.submit(_play_pickled, pickle.dumps(job)) for job in jobs]
    try:
        for future in futures:
            yield pickle.loads(future.result())
    finally:
        for future in futures:
            future.cancel()


def play_once(optimizer: Optimizer, stretch: Stretch, seed: int) -> tuple[Tensor, Tensor]:
    """Return the arm and the regret at each time of a stretch, both ``S``.

    At each time one arm is asked for, and its outcome told; a trial of an arm without a reading
    fails. The optimizer is copied.
    """
    optimizer = deepcopy(optimizer)
    optimizer.generator.manual_seed(seed)
    outcomes = stretch.outcomes
    truth = outcomes if stretch.truth is None else stretch.truth
    arms = torch.empty(len(outcomes), dtype=torch.long)
    with threads_for(1):
        for i, t in enumerate(stretch.times.tolist()):
            trial = optimizer.ask(t=t)
            arms[i] = optimizer.search_space.index(trial.X)  # type: ignore[union-attr]
            outcome = outcomes[i, arms[i]].item()
            if trial.skipped:
                continue
            if math.isnan(outcome):
                optimizer.fail(trial, "no reading")
            else:
                optimizer.tell(trial, outcome)
    best = truth.nan_to_num(nan=-math.inf).amax(dim=1)
    return arms, best - truth.gather(1, arms.unsqueeze(1)).squeeze(1)


def _play_pickled(job: bytes) -> bytes:
    return pickle.dumps(play_once(*pickle.loads(job)))


def _checked(optimizer: Optimizer, name: str, n: int) -> Optimizer:
    """Return the optimizer; raise unless its choices are the arms."""
    space = optimizer.search_space
    if not isinstance(space, FiniteSpace) or len(space.choices) != n:
        raise BotorchTensorDimensionError(
            f"Expected an optimizer over {n} choices, one for each arm, of '{name}'. Got "
            f"{space.__class__.__name__}"
            + (f" of {len(space.choices)}." if isinstance(space, FiniteSpace) else ".")
        )
    return optimizer


def check_readings(values: Tensor, fold: Fold, times: Tensor, arms: Sequence[str]) -> None:
    """Raise unless each time has a reading, and each arm one in training.

    Raises:
        InputDataError: if a time or an arm has none; the message names it.
    """
    observed = ~values.isnan()
    rows = [*fold.train, *fold.test]
    empty = ~observed[rows].any(dim=1)
    if empty.any():
        row = rows[int(empty.nonzero()[0])]
        raise InputDataError(
            "Expected a reading of at least one arm at each time. Got none at "
            f"t={times[row].item():g}, row {row}."
        )
    unread = ~observed[list(fold.train)].any(dim=0)
    if unread.any():
        raise InputDataError(
            "Expected a reading of every arm in the training stretch. Got none of arm "
            f"'{arms[int(unread.nonzero()[0])]}' in rows {_rows(fold.train)}."
        )


def _rows(rows: range) -> str:
    return f"{rows.start}:{rows.stop}"
