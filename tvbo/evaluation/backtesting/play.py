"""Play algorithms: fit each on a training stretch, then ask it time by time."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.algorithms import Algorithm
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace
from tvbo.terminal import patient_steps
from tvbo.threads import threads_for


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
    if block_length is not None and not 0 < block_length < math.inf:
        raise ValueError(f"Expected a finite block_length > 0. Got {block_length}.")
    regret, chosen, labels = {}, {}, {}
    played: dict[str, list[Played]] = {name: [] for name in made}
    names, count = [*made], len(stretches)
    for some in (seeds[:2], seeds[2:]):
        jobs = [
            (name, (optimizer, stretch, seed))
            for name in names
            for seed in some
            for optimizer, stretch in zip(made[name], stretches, strict=True)
        ]
        if not jobs:
            break
        runs = _runs([job for _, job in jobs], executor)
        with patient_steps([name for name, _ in jobs], "playing", progress) as begin:
            for name, _ in jobs:
                begin(name)
                played[name].append(next(runs))
        # Two starts that are the same stand for all.
        same = [name for name in names if _are_same(played[name][:count], played[name][count:])]
        for name in same:
            del played[name][count:]
        names = [name for name in names if name not in same]
    for name, each in played.items():
        starts = len(each) // count
        chosen[name] = torch.cat([one.arms for one in each]).reshape(starts, -1)
        regret[name] = torch.cat([one.regret for one in each]).reshape(starts, -1)
        labels[name] = getattr(algorithms[name], "label", name)
        if name == "always_best" and len(taken := chosen[name].unique()) == 1:
            labels[name] = f"always taking arm {arms[int(taken)]}"
        unread = sum(one.num_unread for one in each)
        if unread:
            remarks.append(
                f"{unread} of the {regret[name].numel()} choices of {name} were arms without a "
                "reading at that time; they count as the worst reading."
            )
    lengths = torch.tensor([len(stretch.times) for stretch in stretches])
    return BacktestResult(
        regret=regret,
        arms_chosen=chosen,
        times=torch.cat([stretch.times for stretch in stretches]),
        fold_of_time=torch.arange(len(stretches)).repeat_interleave(lengths),
        labels=labels,
        arms=arms,
        given_block=block_length,
        time_unit=time_unit,
        messages=remarks,
        **described,
    )


class Played(NamedTuple):
    """A stretch that was played.

    Args:
        arms: The arm at each time, ``S``.
        regret: ``S``; a choice without a reading counts as the worst reading of that time.
        num_unread: Number of choices without a reading.
    """

    arms: Tensor
    regret: Tensor
    num_unread: int


def _are_same(first: Sequence[Played], others: Sequence[Played]) -> bool:
    """Return whether the next start after the first one took the same arms."""
    pairs = zip(first, others, strict=False)
    return len(others) > 0 and all(torch.equal(a.arms, b.arms) for a, b in pairs)


def play_once(optimizer: Optimizer, stretch: Stretch, seed: int) -> Played:
    """Play a stretch with a copy of an optimizer.

    At each time one arm is asked for, and its outcome recorded; a trial of an arm without a reading
    fails.
    """
    optimizer = deepcopy(optimizer)
    optimizer.seed = seed
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
    worst = truth.nan_to_num(nan=math.inf).amin(dim=1)
    taken = truth.gather(1, arms.unsqueeze(1)).squeeze(1)
    unread = taken.isnan()
    regret = best - torch.where(unread, worst, taken)
    return Played(arms, regret, int(unread.sum()))


def _runs(
    jobs: Iterable[tuple[Optimizer, Stretch, int]], executor: Executor | None
) -> Iterator[Played]:
    """Play each job, in order."""
    if executor is None:
        return starmap(play_once, jobs)
    # Bytes, since tensors as they are would pass through shared memory, one open file for each.
    return map(pickle.loads, executor.map(_play_pickled, map(pickle.dumps, jobs)))


def _play_pickled(job: bytes) -> bytes:
    return pickle.dumps(play_once(*pickle.loads(job)))
