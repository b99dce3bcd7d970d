"""Backtests of algorithms: on a recorded panel, or on functions drawn from a fitted model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.algorithms import panel_algorithms
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
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.kernels.temporal import temporal_correlation
from tvbo.logs import DriftFit
from tvbo.logs.panel_season import duration
from tvbo.optimizers import Optimizer
from tvbo.optimizers.constant_rules import FixedAction
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import check_finite, check_last_dimension
from tvbo.test_functions.drifting_gp import covariance_root
from tvbo.values import as_numbers, check_count

if TYPE_CHECKING:
    from datetime import datetime

NUM_STARTS = 5
"""Starts of each algorithm on a panel, by default."""

NUM_SIMULATED_TIMES, NUM_DRAWS = 300, 10
"""Times that are played, and functions that are drawn, by default."""

BLOCK = "1h"
"""Length of a block of times for standard errors, where the times have a unit."""

MAX_DRAWN_ACTIONS = 5000
"""Most actions of a drawn function: a draw takes the Cholesky factor of their covariance."""


def backtest(
    values: Tensor,
    times: Tensor | None = None,
    algorithms: Mapping[str, Algorithm] | Sequence[str] | None = None,
    *,
    train: slice | Sequence[Fold],
    test: slice | None = None,
    folds: int = 1,
    starts: int = NUM_STARTS,
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
    values = as_numbers("values", values)
    if values.ndim != 2 or values.shape[1] < 2:
        raise BotorchTensorDimensionError(
            f"Expected values T x n of at least two arms. Got values.shape={tuple(values.shape)}."
        )
    T, n = values.shape
    times = as_numbers("times", range(1, T + 1) if times is None else times)
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
    check_count(starts=starts)
    parts = _folds(T, train, test, folds)
    for fold in parts:
        check_readings(values, fold, times, arms)
    if not isinstance(algorithms, Mapping):
        algorithms = panel_algorithms(
            algorithms,
            horizon=len(parts[0].test),
            time_unit=time_unit,
            arms=arms,
            fit_options={"origin": origin},
        )
    stretches = [
        Stretch(*(each[list(rows)] for rows in (fold.train, fold.test) for each in (values, times)))
        for fold in parts
    ]
    played = play(stretches, algorithms, range(seed, seed + starts), progress, executor)
    result = _collected(played, stretches, algorithms, arms, block_length, time_unit, unit)
    rows = [(f.train.start, f.train.stop, f.test.start, f.test.stop) for f in parts]
    correlated = result.correlation_message()
    messages = [*result.messages, *([correlated] if correlated else [])]
    return replace(result, folds=rows, messages=messages)


def simulate_backtest(
    fit: DriftFit,
    train_X: Tensor,
    algorithms: Sequence[str] | None = None,
    *,
    choices: Tensor | None = None,
    horizon: int = NUM_SIMULATED_TIMES,
    draws: int = NUM_DRAWS,
    starts: int = 1,
    seed: int = 0,
    unit: str = "",
    progress: bool = True,
    executor: Executor | None = None,
) -> BacktestResult:
    """Play algorithms on functions drawn from the model that was fitted to a log.

    A log with one action at a time does not say what the other actions would have given. So this is
    a simulation: it says what the algorithms would do if the model is right. A drawn function has
    the times of the log, at which the actions of the log are observed, and ``horizon`` times more,
    which are played. Regret is that of the drawn function, without noise; standard errors are
    from one function to another. The algorithms with a GP have the fit as their model. The messages
    of the fit are repeated, and where it says nothing about ε, there is no verdict.

    Args:
        fit: The fit of the log.
        train_X: Rows of the log, ``[action | time]``.
        algorithms: Names of those in :func:`panel_algorithms` but ``fitted``, which would be
            ``tv_gp_ucb``; None is all of them.
        choices: The actions to choose from, ``n x d``; None is the distinct actions of the log.
        horizon: Number of times that are played, in steps of ``fit.round_length``.
        draws: Number of functions.
        starts: Number of starts on each.
        seed: Seed of the first draw, and of the first start.
        unit: Name of the unit of the outcomes, for the verdict.
        progress: Show progress bars on stderr.
        executor: Executor that runs the starts; None runs them serially.

    Raises:
        InputDataError: if an action of the log is not among the choices.
        ValueError: if a number is not positive, a name is unknown, there are too many choices, or
            the fit has no noise variance.
    """
    check_count(horizon=horizon, draws=draws, starts=starts)
    if fit.noise_variance is None:
        raise ValueError("Expected a fit with a noise variance. Got one of known variances.")
    train_X = as_numbers("train_X", train_X)
    actions = train_X[:, :-1]
    space = FiniteSpace(actions.unique(dim=0) if choices is None else choices)
    check_last_dimension("choices", space.choices, actions.shape[-1])
    n = len(space.choices)
    if not 2 <= n <= MAX_DRAWN_ACTIONS:
        raise ValueError(f"Expected from 2 to {MAX_DRAWN_ACTIONS} choices. Got {n}.")
    past, place = train_X[:, -1].unique(return_inverse=True)
    ahead = past[-1] + fit.round_length * torch.arange(1, horizon + 1, dtype=torch.float64)
    root = covariance_root(space.choices, fit.covar_module)
    # The choices are known to the algorithms by number.
    drift = replace(fit, covar_module=CovarianceMatrixKernel(root @ root.mT))
    played_by = panel_algorithms(algorithms, horizon=horizon, drift=drift)
    stretches = []
    for draw in range(draws):
        generator = Generator().manual_seed(seed + draw)
        times = torch.cat([past, ahead])
        truth = fit.mean + drifting_draw(root, times, fit.forgetting_rate, generator)
        noise = torch.randn(truth.shape, dtype=torch.float64, generator=generator)
        outcomes = truth + fit.noise_variance**0.5 * noise
        logged = torch.full_like(outcomes[: len(past)], torch.nan)
        cells = place, space.index(actions)
        logged[cells] = outcomes[: len(past)][cells]
        stretches.append(
            Stretch(logged, past, outcomes[len(past) :], ahead, truth=truth[len(past) :])
        )
    played = play(stretches, played_by, range(seed, seed + starts), progress, executor)
    arms = [", ".join(f"{x:.4g}" for x in row) for row in space.choices.tolist()]
    # A drawn function is a block.
    block_length = horizon * fit.round_length
    result = _collected(played, stretches, played_by, arms, block_length, fit.time_unit, unit)
    messages = [*fit.messages, *result.messages]
    return replace(result, simulated=True, messages=messages, is_undecided=fit.is_undetermined)


def drifting_draw(
    root: Tensor, times: Tensor, forgetting_rate: float, generator: Generator
) -> Tensor:
    """Return a function of the model of Bogunovic et al. (2016) at increasing times, ``T x n``.

    Args:
        root: A root of the covariance of the actions, ``n x n``.
        times: ``T``.
        forgetting_rate: ε per unit of time.
        generator: Source of the draw.
    """
    normal = torch.randn(len(times), len(root), dtype=torch.float64, generator=generator)
    values = normal @ root.mT
    rate = torch.tensor(forgetting_rate, dtype=torch.float64)
    kept = temporal_correlation(times.diff(), rate)
    for i, share in enumerate(kept.tolist(), start=1):
        values[i] = share * values[i - 1] + (1 - share**2) ** 0.5 * values[i]
    return values


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


def _collected(
    played: Played,
    stretches: Sequence[Stretch],
    algorithms: Mapping[str, Algorithm],
    arms: Sequence[str],
    block_length: float | None,
    time_unit: str,
    unit: str,
) -> BacktestResult:
    """Return the result of what was played, with its messages."""
    lengths = torch.tensor([len(stretch.times) for stretch in stretches])
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
    return BacktestResult(
        regret=played.regret,
        arms_chosen=played.arms,
        times=torch.cat([stretch.times for stretch in stretches]),
        fold_of_time=torch.arange(len(stretches)).repeat_interleave(lengths),
        labels={
            name: _label(name, algorithms[name], played.optimizers[name], arms)
            for name in algorithms
        },
        arms=arms,
        block_length=block_length,
        time_unit=time_unit,
        unit=unit,
        messages=messages,
    )


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
