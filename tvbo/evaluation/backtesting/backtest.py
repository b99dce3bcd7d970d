"""Backtest of algorithms on a recorded panel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.evaluation.backtesting.algorithms import FittedAlgorithm, panel_algorithms
from tvbo.evaluation.backtesting.models import DriftModel, PanelModel
from tvbo.evaluation.backtesting.play import (
    Algorithm,
    Fold,
    Played,
    Stretch,
    check_apart,
    check_readings,
    play,
    rolling_folds,
)
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.logs.panel_season import duration
from tvbo.optimizers import FixedAction, Optimizer
from tvbo.spaces.observations import check_finite
from tvbo.values import as_numbers, check_count

if TYPE_CHECKING:
    from datetime import datetime

STARTS = 5
BLOCK = "1h"
"""Length of a block of times for standard errors, where the times have a unit."""


def backtest(
    values: Tensor,
    times: Tensor | None = None,
    algorithms: Mapping[str, Algorithm] | Sequence[str] | None = None,
    *,
    train: slice | Sequence[Fold],
    test: slice | None = None,
    folds: int = 1,
    starts: int = STARTS,
    seed: int = 0,
    block_length: float | None = None,
    time_unit: str = "1",
    origin: datetime | str | None = None,
    unit: str = "",
    arms: Sequence[str] | None = None,
    progress: bool = True,
    executor: Executor | None = None,
) -> BacktestResult:
    """Fit algorithms on the first part of a panel, and play them on the rest.

    At each time that is played each algorithm takes one arm, and is told that arm's value. Its
    regret is the largest value at that time minus this one. Where the chosen arm has no reading,
    the trial fails and its regret is left out.

    Args:
        values: ``T x n``, larger is better; NaN where there is no reading.
        times: ``T``, increasing; None counts 1, 2, ...
        algorithms: Names of those in :func:`panel_algorithms`, or factories by name, each a
            callable ``(training values, training times, generator) -> Optimizer``. None is all
            of :func:`panel_algorithms`.
        train: Rows of the training stretch; or all folds.
        test: Rows that are played; None is all after ``train``.
        folds: Number of rolling folds: the rows that are played are divided, and the training
            stretch moves along with them (:func:`rolling_folds`).
        starts: Number of starts of each algorithm, which differ in their seeds.
        seed: Seed of the first start.
        block_length: Length of a block of times for standard errors, in units of time; blocks are
            taken as independent. None is an hour, or the root of the number of times where the
            times have no unit of pandas.
        time_unit: Name of the unit of time, such as ``"5min"``.
        origin: Timestamp of time zero, as of :func:`tvbo.logs.fit_panel`.
        unit: Name of the unit of the values, for the verdict.
        arms: Names of the arms; None counts from 0.
        progress: Show progress bars on stderr.
        executor: Executor that runs the starts; None runs them serially.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree, or an optimizer has other choices.
        InputDataError: if a value is infinite, times do not increase, a time has no reading at all,
            an arm has none in training, or a stretch cannot be fitted.
        ValueError: if a fold is empty, too short or overlaps another one, or a name is unknown.

    Example:
        >>> result = backtest(values, train=slice(0, 1152), time_unit="5min")
        >>> print(result.verdict)
    """
    values, times, arms = _checked(values, times, arms)
    check_count(starts=starts)
    parts = _folds(len(values), train, test, folds)
    for fold in parts:
        check_readings(values, fold, times, arms)
    if algorithms is None or not isinstance(algorithms, Mapping):
        algorithms = panel_algorithms(
            algorithms,
            horizon=len(parts[0].test),
            model=DriftModel(time_unit=time_unit, arms=arms),
            fitted=FittedAlgorithm.of_panel(PanelModel(time_unit, {"origin": origin})),
        )
    stretches = [
        Stretch(*(each[list(rows)] for rows in (fold.train, fold.test) for each in (values, times)))
        for fold in parts
    ]
    played = play(stretches, algorithms, range(seed, seed + starts), progress, executor)
    result = collect(played, stretches, algorithms, arms, block_length, time_unit, unit)
    return replace(
        result,
        folds=[(f.train.start, f.train.stop, f.test.start, f.test.stop) for f in parts],
    )


def _checked(
    values: Tensor, times: Tensor | None, arms: Sequence[str] | None
) -> tuple[Tensor, Tensor, Sequence[str]]:
    values = as_numbers("values", values)
    if values.ndim != 2 or values.shape[1] < 2:
        raise BotorchTensorDimensionError(
            f"Expected values T x n of at least two arms. Got values.shape={tuple(values.shape)}."
        )
    T, n = values.shape
    if times is None:
        times = torch.arange(1, T + 1, dtype=torch.float64)
    times = as_numbers("times", times)
    arms = [str(arm) for arm in (range(n) if arms is None else arms)]
    if times.shape != (T,) or len(arms) != n:
        raise BotorchTensorDimensionError(
            f"Expected {T} times and {n} arms for values of shape {T} x {n}. Got "
            f"times.shape={tuple(times.shape)} and {len(arms)} arms."
        )
    check_finite("values", values.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf))
    check_finite("times", times)
    if (times.diff() <= 0).any():
        raise InputDataError("Expected times that increase. Got times that do not.")
    return values, times, arms


def _folds(
    length: int, train: slice | Sequence[Fold], test: slice | None, folds: int
) -> Sequence[Fold]:
    if isinstance(train, slice):
        rows = range(length)[train]
        played = range(rows.stop, length) if test is None else range(length)[test]
        return rolling_folds(rows, played, folds)
    if test is not None or folds != 1:
        raise ValueError("Expected no test and no number of folds beside the folds. Got both.")
    check_apart(train)
    for fold in train:
        if fold.test.stop > length:
            raise ValueError(f"Expected rows among the {length} there are. Got {fold}.")
    return train


def collect(
    played: Played,
    stretches: Sequence[Stretch],
    algorithms: Mapping[str, Algorithm],
    arms: Sequence[str],
    block_length: float | None,
    time_unit: str,
    unit: str,
    simulated: bool = False,
) -> BacktestResult:
    """Return the result of what was played, with its messages.

    Args:
        played: What was played.
        stretches: The stretches.
        algorithms: Factories by name.
        arms: Names of the arms.
        block_length: Length of a block of times; None is the default.
        time_unit: Name of the unit of time.
        unit: Name of the unit of the outcomes.
        simulated: Whether the values were drawn from a model.
    """
    lengths = torch.tensor([len(stretch.times) for stretch in stretches])
    times = torch.cat([stretch.times for stretch in stretches])
    messages = [m for each in algorithms.values() for m in getattr(each, "messages", [])]
    if block_length is None:
        block_length, remarks = _default_block(stretches[0].times, time_unit)
        messages += remarks
    if not 0 < block_length < math.inf:
        raise ValueError(f"Expected a finite block_length > 0. Got {block_length}.")
    for name, rows in played.regret.items():
        if rows.isnan().any():
            messages.append(
                f"{int(rows.isnan().sum())} of the {rows.numel()} choices of {name} were arms "
                "without a reading at that time; they are left out."
            )
    result = BacktestResult(
        regret=played.regret,
        arms_chosen=played.arms,
        times=times,
        fold_of_time=torch.arange(len(stretches)).repeat_interleave(lengths),
        labels={
            name: _label(name, algorithms[name], played.optimizers[name], arms)
            for name in algorithms
        },
        arms=arms,
        block_length=block_length,
        time_unit=time_unit,
        unit=unit,
        simulated=simulated,
        messages=messages,
    )
    # Drawn functions are independent.
    correlated = None if simulated else result.correlation_message()
    return result if correlated is None else replace(result, messages=[*messages, correlated])


def _default_block(times: Tensor, time_unit: str) -> tuple[float, list[str]]:
    """Return an hour in the unit of time; where it has none, some rounds, and a message."""
    import pandas as pd

    step = duration(time_unit)
    gap = times.diff().median().item() if len(times) > 1 else 1.0
    if step is not None:
        hour = pd.Timedelta(BLOCK) / step
        if hour >= gap:
            return hour, []
        return gap, [f"Steps are longer than {BLOCK}: each time is a block of its own."]
    rounds = max(1, round(math.sqrt(len(times))))
    return rounds * gap, [
        f"Times have no unit: standard errors are from blocks of {rounds} rounds, taken as "
        "independent."
    ]


def _label(
    name: str, algorithm: Algorithm, optimizers: Sequence[Optimizer], arms: Sequence[str]
) -> str:
    """Return what an algorithm is called in the verdict."""
    taken = {
        arms[int(each.search_space.index(each.X))]  # type: ignore[union-attr]
        for each in optimizers
        if isinstance(each, FixedAction)
    }
    if len(taken) == 1:
        return f"always taking arm {taken.pop()}"
    if taken:
        return "always taking the best arm of training"
    return getattr(algorithm, "label", name)
