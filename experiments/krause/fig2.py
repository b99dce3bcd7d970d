"""Figure 2 of Krause, Ong (2011): vaccine design, one molecule after another."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from experiments.claims import Reproduction
from experiments.data.mhc import BindingData
from experiments.krause.fig2_claims import NUM_RELATED, make_claims, summarize
from experiments.krause.fig2_model import (
    METHODS,
    Method,
    TaskPosterior,
    fit_examples,
    learned,
)
from experiments.spread import spread
from tvbo.acquisition import LogBeta
from tvbo.acquisition.ucb import BetaSchedule
from tvbo.rounding import argmax

NAME = "krause-fig2"
NUM_EXAMPLES = 1000
NUM_CANDIDATES = 1000
TRIALS_PER_MOLECULE = 50
BETA = LogBeta()
"""The paper does not state its schedule."""

ONCE = ", each peptide once"
"""Suffix of the names of runs in which a peptide of a molecule is tried at most once."""


@dataclass(frozen=True)
class Task:
    """The candidates of one molecule.

    Args:
        rows: The candidates ``[features | molecule]``, ``c x d``, in random order.
        reward: The measured reward of each, ``c``.
    """

    rows: Tensor
    reward: Tensor


@dataclass(frozen=True)
class Played:
    """Result of one replicate.

    Args:
        regret: Regret of each run, ``tasks x horizon``.
        repeats: Share of repeated candidates in each run.
        parameters: Learned hyperparameters of each method.
    """

    regret: dict[str, Tensor]
    repeats: dict[str, float]
    parameters: dict[str, dict[str, float]]


def krause_fig2(
    data: BindingData,
    trials: int = 10,
    seed: int = 0,
    num_examples: int = NUM_EXAMPLES,
    num_candidates: int | None = NUM_CANDIDATES,
    trials_per_molecule: int = TRIALS_PER_MOLECULE,
    beta: BetaSchedule = BETA,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Figure 2: CGP-UCB, merged and separate, on the molecules in their order.

    The actions are the peptides with known affinity to the present molecule, a different set for
    each molecule; regret is relative to the best of them. The paper's algorithm may repeat a
    peptide, with the same outcome; each method is also run without repeats.

    Args:
        data: From :func:`experiments.data.mhc.mhc`; the first three molecules are related, the
            fourth is not.
        trials: Number of seeds.
        seed: Replicate ``i`` uses the seed ``seed + i`` for examples, candidates and ties.
        num_examples: Number of measurements from which each method learns its hyperparameters. They
            are neither candidates nor observations.
        num_candidates: Number of candidates of each molecule, drawn from its other measurements;
            None, or if there are fewer, takes all.
        trials_per_molecule: Trials on each molecule.
        beta: Schedule by trial, from the first molecule on; *separate*, which is a GP-UCB for each
            molecule, counts the trials of each.
        progress: Show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials``, ``num_candidates`` or ``trials_per_molecule`` is not positive,
            ``num_examples`` is below 2, there are no four molecules, or one of them has fewer
            candidates than trials.
    """
    if min(trials, trials_per_molecule, 1 if num_candidates is None else num_candidates) < 1:
        raise ValueError(
            "Expected trials, num_candidates and trials_per_molecule >= 1. "
            f"Got {trials}, {num_candidates} and {trials_per_molecule}."
        )
    if num_examples < 2:
        raise ValueError(f"Expected num_examples >= 2. Got {num_examples}.")
    if len(data.molecules) <= NUM_RELATED:
        raise ValueError(
            f"Expected at least {NUM_RELATED + 1} molecules: {NUM_RELATED} related ones, and one "
            f"that is not. Got {len(data.molecules)}."
        )
    names = [name + end for end in ("", ONCE) for name in METHODS]
    once = partial(_play_all, data, num_examples, num_candidates, trials_per_molecule, beta)
    played = spread(once, range(seed, seed + trials), executor, NAME, progress)
    curves = {name: torch.stack([each.regret[name] for each in played]) for name in names}
    repeats = {name: [each.repeats[name] for each in played] for name in names}
    parameters = {name: [each.parameters[name] for each in played] for name in METHODS}
    return Reproduction(
        name=NAME,
        title=f"Peptides for {len(data.molecules)} HLA-A molecules, {trials_per_molecule} trials "
        "each, regret in powers of ten of the affinity",
        settings={
            "trials": trials,
            "seed": seed,
            "molecules": data.molecules,
            "hamming_distances": data.distances.long().tolist(),
            "measurements": torch.bincount(data.molecule).tolist(),
            "encoding": "BLOSUM62",
            "num_examples": num_examples,
            "num_candidates": num_candidates,
            "trials_per_molecule": trials_per_molecule,
            "beta": repr(beta),
            "hyperparameters": {name: _means(runs) for name, runs in parameters.items()},
        },
        results={
            name: summarize(curves[name], torch.tensor(repeats[name], dtype=torch.float64))
            for name in names
        },
        claims=make_claims({name: curves[name] for name in METHODS})
        + make_claims({name: curves[name + ONCE] for name in METHODS}, f"{ONCE} (added later)"),
        regret=curves,
    )


def _play_all(
    data: BindingData,
    num_examples: int,
    num_candidates: int | None,
    horizon: int,
    beta: BetaSchedule,
    seed: int,
) -> Played:
    """Run all methods on the tasks of one replicate."""
    generator = torch.Generator().manual_seed(seed)
    examples, tasks = draw_tasks(data, num_examples, num_candidates, generator)
    _check_enough(data, tasks, horizon)
    played = Played({}, {}, {})
    for name, method in METHODS.items():
        model = fit_examples(data, examples, method, generator)
        played.parameters[name] = learned(model)
        for end in ("", ONCE):
            chosen = play(TaskPosterior(model), tasks, horizon, method, beta, end == ONCE)
            played.regret[name + end] = regret_of(tasks, chosen)
            played.repeats[name + end] = share_of_repeats(chosen)
    return played


def draw_tasks(
    data: BindingData, num_examples: int, num_candidates: int | None, generator: Generator
) -> tuple[Tensor, list[Task]]:
    """Return the examples to learn from, and the tasks without them.

    Returns:
        Indices of the examples among the measurements, and a task for each molecule.
    """
    order = torch.randperm(len(data), generator=generator)
    examples, rest = order[:num_examples], order[num_examples:]
    tasks = []
    for place in range(len(data.molecules)):
        candidates = rest[data.molecule[rest] == place][:num_candidates]
        tasks.append(Task(data.rows(candidates), data.reward[candidates]))
    return examples, tasks


def _check_enough(data: BindingData, tasks: list[Task], horizon: int) -> None:
    for name, task in zip(data.molecules, tasks, strict=True):
        if len(task.reward) < horizon:
            raise ValueError(
                f"Expected at least {horizon} candidates for every molecule, one for each trial. "
                f"Got {len(task.reward)} for {name}."
            )


def play(
    posterior: TaskPosterior,
    tasks: list[Task],
    horizon: int,
    method: Method,
    beta: BetaSchedule,
    once: bool = False,
) -> Tensor:
    """Run CGP-UCB (2) of Krause, Ong (2011): ``horizon`` trials on each task in sequence.

    Args:
        posterior: The model, without observations.
        tasks: The tasks in their order.
        horizon: Trials on each.
        method: Method, which determines how β counts trials.
        beta: Schedule of β.
        once: Whether each candidate of a task is tried at most once.

    Returns:
        Indices of the candidates tried, ``tasks x horizon``.
    """
    chosen = torch.empty(len(tasks), horizon, dtype=torch.long)
    for j, task in enumerate(tasks):
        posterior.enter(task.rows)
        for i in range(horizon):
            t = i + 1 if method.counts_by_task else j * horizon + i + 1
            upper = posterior.mean + beta(t) ** 0.5 * posterior.variance.sqrt()
            if once:
                upper[chosen[j, :i]] = -torch.inf
            # Candidates are in random order, so that the first of several ties is a random one, the
            # same for all methods.
            place = int(argmax(upper))
            posterior.observe(place, task.reward[place].item())
            chosen[j, i] = place
    return chosen


def regret_of(tasks: list[Task], chosen: Tensor) -> Tensor:
    """Return the best reward of a task minus that of the chosen, ``tasks x horizon``."""
    return torch.stack(
        [
            task.reward.max() - task.reward[places]
            for task, places in zip(tasks, chosen, strict=True)
        ]
    )


def share_of_repeats(chosen: Tensor) -> float:
    """Return the share of trials that repeat a candidate of their task."""
    distinct = sum(len(places.unique()) for places in chosen)
    return 1 - distinct / chosen.numel()


def _means(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each hyperparameter over the runs."""
    return {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}
