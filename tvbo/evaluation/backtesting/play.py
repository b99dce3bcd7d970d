"""Play algorithms: fit each on a training stretch, then ask it time by time."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.algorithms import Algorithm
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.evaluation.backtesting.rivals import FixedAction
from tvbo.logs.panel_season import duration
from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace
from tvbo.terminal import patient_steps
from tvbo.threads import threads_for

BLOCK = "1h"
"""Length of a block of times for standard errors, where the times have a unit."""


@dataclass(frozen=True)
class Stretch:
    """What is known when playing begins, and what is then met.

    Args:
        train_values: ``T x n``; NaN where there is none.
        train_times: ``T``.
        times: Times that are played, ``S``.
        outcomes: Outcome of each arm at each of them, ``S x n``; NaN where there is no reading.
        truth: Values that regret is measured by, ``S x n``; None for ``outcomes``.
    """

    train_values: Tensor
    train_times: Tensor
    times: Tensor
    outcomes: Tensor
    truth: Tensor | None = None


def play(
    stretches: Sequence[Stretch],
    algorithms: Mapping[str, Algorithm],
    seeds: range,
    *,
    arms: Sequence[str],
    block_length: float | None,
    time_unit: str,
    progress: bool,
    executor: Executor | None,
    messages: Sequence[str] = (),
    **described: Any,
) -> BacktestResult:
    """Fit each algorithm on each stretch, play it from several starts, and return the result.

    Args:
        stretches: The stretches.
        algorithms: Factories by name, called once for each stretch, in this process.
        seeds: Seeds of the starts.
        arms: Names of the arms.
        block_length: As of :func:`backtest`.
        time_unit: Name of the unit of time.
        progress: Show progress bars on stderr.
        executor: Executor that runs the starts; None runs them serially.
        messages: What comes first in the messages of the result.
        **described: Further arguments of the result.
    """
    remarks = [*messages]
    made: dict[str, list[Optimizer]] = {name: [] for name in algorithms}
    with patient_steps([*algorithms] * len(stretches), "fitting", progress) as begin:
        # One stretch after another, so that factories may share what they fit to it.
        for stretch in stretches:
            for name, make in algorithms.items():
                begin(name)
                generator = Generator().manual_seed(seeds.start)
                optimizer = make(stretch.train_values, stretch.train_times, generator)
                space = optimizer.search_space
                count = len(space.choices) if isinstance(space, FiniteSpace) else None
                if count != len(arms):
                    raise BotorchTensorDimensionError(
                        f"Expected an optimizer over {len(arms)} choices, one for each arm, of "
                        f"'{name}'. Got {count or type(space).__name__}."
                    )
                made[name].append(optimizer)
    for make in algorithms.values():
        remarks += getattr(make, "messages", [])
    if block_length is None:
        block_length = _default_block(stretches[0].times, time_unit, remarks)
    if not 0 < block_length < math.inf:
        raise ValueError(f"Expected a finite block_length > 0. Got {block_length}.")
    regret, chosen = {}, {}
    jobs = [
        (optimizer, stretch, seed)
        for optimizers in made.values()
        for seed in seeds
        for optimizer, stretch in zip(optimizers, stretches, strict=True)
    ]
    num_runs = len(seeds) * len(stretches)
    steps = [name for name in algorithms for _ in range(num_runs)]
    runs = _runs(jobs, executor)
    with patient_steps(steps, "playing", progress) as begin:
        for name in algorithms:
            played = []
            for _ in range(num_runs):
                begin(name)
                played.append(next(runs))
            chosen[name], regret[name] = (
                torch.cat(column).reshape(len(seeds), -1) for column in zip(*played, strict=True)
            )
            unread = regret[name].isnan().sum()
            if unread:
                remarks.append(
                    f"{unread} of the {regret[name].numel()} choices of {name} were arms without "
                    "a reading at that time; they are left out."
                )
    lengths = torch.tensor([len(stretch.times) for stretch in stretches])
    return BacktestResult(
        regret=regret,
        arms_chosen=chosen,
        times=torch.cat([stretch.times for stretch in stretches]),
        fold_of_time=torch.arange(len(stretches)).repeat_interleave(lengths),
        labels={name: _label(name, make, made[name], arms) for name, make in algorithms.items()},
        arms=arms,
        block_length=block_length,
        time_unit=time_unit,
        messages=remarks,
        **described,
    )


def play_once(optimizer: Optimizer, stretch: Stretch, seed: int) -> tuple[Tensor, Tensor]:
    """Return the arm and the regret at each time of a stretch, both ``S``.

    At each time one arm is asked for, and its outcome recorded; a trial of an arm without a reading
    fails. The optimizer is copied.
    """
    optimizer = deepcopy(optimizer)
    optimizer.generator.manual_seed(seed)
    outcomes, truth = stretch.outcomes, stretch.truth
    arms = torch.empty(len(outcomes), dtype=torch.long)
    with threads_for(1):
        for i, t in enumerate(stretch.times.tolist()):
            trial = optimizer.ask(t=t)
            arms[i] = optimizer.search_space.index(trial.X)  # type: ignore[union-attr]
            outcome = outcomes[i, arms[i]].item()
            if math.isnan(outcome) and not trial.skipped:
                optimizer.fail(trial, "no reading")
            elif not trial.skipped:
                optimizer.tell(trial, outcome)
    truth = outcomes if truth is None else truth
    best = truth.nan_to_num(nan=-math.inf).amax(dim=1)
    return arms, best - truth.gather(1, arms.unsqueeze(1)).squeeze(1)


def _runs(
    jobs: Iterable[tuple[Optimizer, Stretch, int]], executor: Executor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return arms and regret of each job, in order."""
    if executor is None:
        return starmap(play_once, jobs)
    # Bytes, since tensors as they are would pass through shared memory, one open file for each.
    return map(pickle.loads, executor.map(_play_pickled, map(pickle.dumps, jobs)))


def _play_pickled(job: bytes) -> bytes:
    return pickle.dumps(play_once(*pickle.loads(job)))


def _default_block(times: Tensor, time_unit: str, remarks: list[str]) -> float:
    """Return an hour in the unit of time; where it has none, some rounds, and remark on it."""
    import pandas as pd

    step = duration(time_unit)
    gap = times.diff().median().item() if len(times) > 1 else 1.0
    if step is None:
        rounds = max(1, round(math.sqrt(len(times))))
        remarks.append(
            f"Times have no unit: standard errors are from blocks of {rounds} rounds, taken as "
            "independent."
        )
        return rounds * gap
    hour: float = pd.Timedelta(BLOCK) / step
    if hour < gap:
        remarks.append(f"Steps are longer than {BLOCK}: each time is a block of its own.")
    return max(hour, gap)


def _label(name: str, make: Algorithm, optimizers: Sequence[Optimizer], arms: Sequence[str]) -> str:
    """Return what an algorithm is called in the verdict."""
    fixed = [each for each in optimizers if isinstance(each, FixedAction)]
    taken = {arms[int(each.search_space.index(each.X))] for each in fixed}  # type: ignore[union-attr]
    if len(taken) == 1:
        return f"always taking arm {taken.pop()}"
    return getattr(make, "label", name)
