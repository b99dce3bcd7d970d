"""Backtests of algorithms: on a recorded panel, or on functions drawn from a fitted model."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product, starmap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.algorithms import Algorithm, panel_algorithms
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import DriftFit
from tvbo.logs.season import Season
from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import check_last_dimension
from tvbo.terminal import patient_steps
from tvbo.test_functions import PanelProblem
from tvbo.test_functions.drifting_gp import covariance_root, drifting_values
from tvbo.threads import threads_for
from tvbo.values import as_numbers, check_count

if TYPE_CHECKING:
    from datetime import datetime

NUM_STARTS = 5
"""Starts of each algorithm on a panel, by default."""

NUM_SIMULATED_TIMES, NUM_DRAWS = 300, 10
"""Times that are played, and functions that are drawn, by default."""

MAX_DRAWN_ACTIONS = 5000
"""Most actions of a drawn function: a draw takes the Cholesky factor of their covariance."""

MIN_TRAIN_TIMES = 3
"""Fewest times of a training stretch."""


class Fold(NamedTuple):
    """Rows of a panel to train on, and later ones to play.

    Args:
        train: Rows of the training stretch.
        test: Rows that are played.
    """

    train: range
    test: range


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
    season: float | Season | Literal["auto"] | None = "auto",
    temporal_kernel: str | None = "auto",
    unit: str = "",
    arms: Sequence[str] | None = None,
    progress: bool = True,
    executor: Executor | None = None,
) -> BacktestResult:
    """Fit algorithms on the first part of a panel, and play them on the rest.

    At each time that is played each algorithm takes one arm, and observes that arm's value. Its
    regret is the largest value at that time minus this one. Where the chosen arm has no reading,
    the trial fails, and counts as the smallest value of that time. Times at which fewer than two
    arms have a reading are left out.

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
            taken as independent. None is twice the time over which the differences of the verdict
            correlate, and at least a day where ``time_unit`` is a duration.
        time_unit: Name of the unit of time, such as ``"5min"``.
        origin: Timestamp of time zero, as of :func:`tvbo.logs.fit_panel`.
        season: Season of what is fitted, as of that function.
        temporal_kernel: Form of drift of what is fitted, as of that function.
        unit: Name of the unit of the values, for the verdict.
        arms: Names of the arms; None counts from 0.
        progress: Show progress bars on stderr.
        executor: Executor that runs the starts; None runs them serially.

    Raises:
        BotorchTensorDimensionError: if shapes do not agree, or an optimizer has other choices.
        InputDataError: if a value is infinite, times do not increase, an arm has no reading in
            training, at no time that is played two have one, or a stretch cannot be fitted.
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
    check_count(starts=starts)
    if block_length is not None and not 0 < block_length < math.inf:
        raise ValueError(f"Expected a finite block_length > 0. Got {block_length}.")
    if isinstance(train, slice):
        rows = range(T)[train]
        played = range(rows.stop, T) if test is None else range(T)[test]
        parts: Sequence[Fold] = rolling_folds(rows, played, folds)
    elif test is None and folds == 1:
        parts = train
    else:
        raise ValueError("Expected no test and no number of folds beside the folds. Got both.")
    _check_folds(parts, T)
    used = sorted({row for fold in parts for rows in fold for row in rows})
    counts = (~values.isnan()).sum(dim=1)
    kept = [row for row in used if counts[row] > 0]
    PanelProblem(values[kept], times[kept])  # Which checks them.
    for fold in parts:
        unread = values[[*fold.train]].isnan().all(dim=0)
        if unread.any():
            raise InputDataError(
                "Expected a reading of every arm in the training stretch. Got none of arm "
                f"'{arms[int(unread.nonzero()[0])]}' in rows {_rows(fold.train)}."
            )
        if counts[[*fold.test]].max() < 2:
            raise InputDataError(
                "Expected readings of two arms at one time in the rows that are played. Got none "
                f"in {_rows(fold.test)}."
            )
    if not isinstance(algorithms, Mapping):
        horizon, given = len(parts[0].test), {"origin": origin, "arms": tuple(arms)}
        options = {"season": season, "temporal_kernel": temporal_kernel, **given}
        algorithms = panel_algorithms(
            algorithms, horizon=horizon, time_unit=time_unit, fit_options=options
        )
    stretches = []
    for fold in parts:
        known = [row for row in fold.train if counts[row] > 0]
        met = [row for row in fold.test if counts[row] > 1]
        of_fold = values[known], times[known], times[met], values[met], values[met]
        stretches.append(Stretch(*of_fold))
    return _play(
        stretches,
        algorithms,
        range(seed, seed + starts),
        executor,
        progress,
        arms=arms,
        given_block=block_length,
        time_unit=time_unit,
        unit=unit,
        folds=parts,
    )


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
    cells = place, space.index(actions)
    stretches, met = [], len(past)
    for draw in range(draws):
        generator = Generator().manual_seed(seed + draw)
        times = torch.cat([past, ahead])
        truth = fit.mean + drifting_values(root, fit.forgetting_rate, times, generator)
        noise = torch.randn(truth.shape, dtype=torch.float64, generator=generator)
        outcomes = truth + fit.noise_variance**0.5 * noise
        logged = torch.full_like(outcomes[:met], torch.nan)
        logged[cells] = outcomes[cells]
        stretches.append(Stretch(logged, past, ahead, outcomes[met:], truth[met:]))
    return _play(
        stretches,
        played_by,
        range(seed, seed + starts),
        executor,
        progress,
        arms=[", ".join(f"{x:.4g}" for x in row) for row in space.choices.tolist()],
        # A drawn function is a block.
        given_block=horizon * fit.round_length,
        time_unit=fit.time_unit,
        messages=fit.messages,
        unit=unit,
        simulated=True,
        is_undecided=fit.is_undetermined,
    )


@dataclass(frozen=True)
class Stretch:
    """What is known when playing begins, and what is then met.

    Args:
        train_values: ``T x n``; NaN where there is none.
        train_times: ``T``.
        times: Times that are played, ``S``.
        outcomes: Outcome of each arm at each of them, ``S x n``; NaN where there is no reading.
        truth: Values that regret is measured by, ``S x n``.
    """

    train_values: Tensor
    train_times: Tensor
    times: Tensor
    outcomes: Tensor
    truth: Tensor


def _play(
    stretches: Sequence[Stretch],
    algorithms: Mapping[str, Algorithm],
    seeds: range,
    executor: Executor | None,
    progress: bool,
    *,
    arms: Sequence[str],
    messages: Sequence[str] = (),
    **described: Any,
) -> BacktestResult:
    """Fit each algorithm on each stretch, play it from several starts, and return the result.

    Args:
        stretches: The stretches.
        algorithms: Factories by name, called once for each stretch, in this process.
        seeds: Seeds of the starts.
        executor: Executor that runs the starts; None runs them serially.
        progress: Show progress bars on stderr.
        arms: Names of the arms.
        messages: What comes first in the messages of the result.
        **described: Further arguments of the result.
    """
    made: dict[str, list[Optimizer]] = {name: [] for name in algorithms}
    with patient_steps([*algorithms] * len(stretches), "fitting", progress) as begin:
        # One stretch after another, so that factories may share what they fit to it.
        for stretch, (name, make) in product(stretches, algorithms.items()):
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
    of_algorithms = (getattr(each, "messages", ()) for each in algorithms.values())
    remarks = [*messages, *chain.from_iterable(of_algorithms)]
    times = torch.cat([stretch.times for stretch in stretches])
    chosen = {name: torch.empty(0, len(times), dtype=torch.long) for name in made}
    for some in filter(None, (seeds[:2], seeds[2:])):
        # Two starts that are the same stand for all.
        names = [name for name, rows in chosen.items() if len(rows) != 1]
        jobs = [*product(names, some, range(len(stretches)))]
        runs = _runs([(made[name][k], stretches[k], seed) for name, seed, k in jobs], executor)
        with patient_steps([name for name, *_ in jobs], "playing", progress) as begin:
            for name in names:
                arms_of = []
                for _ in range(len(some) * len(stretches)):
                    begin(name)
                    arms_of.append(next(runs))
                rows = torch.cat([chosen[name].flatten(), *arms_of]).reshape(-1, len(times))
                chosen[name] = rows[:1] if len(rows) == 2 and torch.equal(*rows) else rows
    truth = torch.cat([stretch.truth for stretch in stretches])
    best = truth.nan_to_num(nan=-math.inf).amax(dim=1)
    worst = truth.nan_to_num(nan=math.inf).amin(dim=1)
    regret, labels = {}, {}
    for name, rows in chosen.items():
        taken = truth[torch.arange(len(truth)), rows]
        regret[name] = best - torch.where(taken.isnan(), worst, taken)
        labels[name] = getattr(algorithms[name], "label", name)
        if name == "always_best" and len(alone := rows.unique()) == 1:
            labels[name] = f"always taking arm {arms[int(alone)]}"
        if unread := int(taken.isnan().sum()):
            remarks.append(
                f"{unread} of the {taken.numel()} choices of {name} were arms without a reading at "
                "that time; they count as the worst reading."
            )
    lengths = torch.tensor([len(stretch.times) for stretch in stretches])
    fold_of_time = torch.arange(len(stretches)).repeat_interleave(lengths)
    played = regret, chosen, times, fold_of_time, labels, arms
    return BacktestResult(*played, messages=remarks, **described)


def _play_once(optimizer: Optimizer, stretch: Stretch, seed: int) -> Tensor:
    """Play a stretch with a copy of an optimizer, and return the arm at each time, ``S``.

    At each time one arm is asked for, and its outcome recorded; a trial of an arm without a reading
    fails.
    """
    optimizer = deepcopy(optimizer)
    optimizer.seed = seed
    arms = torch.empty(len(stretch.times), dtype=torch.long)
    with threads_for(1):
        for i, t in enumerate(stretch.times.tolist()):
            trial = optimizer.ask(t=t)
            arms[i] = optimizer.search_space.index(trial.X)  # type: ignore[union-attr]
            outcome = stretch.outcomes[i, arms[i]].item()
            if math.isnan(outcome) and not trial.skipped:
                optimizer.fail(trial, "no reading")
            elif not trial.skipped:
                optimizer.tell(trial, outcome)
    return arms


def _runs(
    jobs: Iterable[tuple[Optimizer, Stretch, int]], executor: Executor | None
) -> Iterator[Tensor]:
    """Play each job, in order."""
    if executor is None:
        return starmap(_play_once, jobs)
    # Bytes, since tensors as they are would pass through shared memory, one open file for each.
    return map(pickle.loads, executor.map(_play_pickled, map(pickle.dumps, jobs)))


def _play_pickled(job: bytes) -> bytes:
    return pickle.dumps(_play_once(*pickle.loads(job)))


def rolling_folds(train: range, test: range, count: int) -> list[Fold]:
    """Return folds that move through the rows: as many rows of training before each test stretch.

    Args:
        train: Training rows of the first fold; those of the others are as many, further on.
        test: Rows to play, which are divided among the folds.
        count: Number of folds.

    Raises:
        ValueError: if ``count`` is not positive or above the number of rows to play, a stretch has
            steps or is empty, training is too short, or the stretches overlap.
    """
    _check_folds([Fold(train, test)], test.stop)
    if not 1 <= count <= len(test):
        raise ValueError(f"Expected from 1 to {len(test)} folds, a row each. Got {count}.")
    bounds = [len(test) * i // count for i in range(count + 1)]
    return [
        Fold(
            range(train.start + first, train.stop + first),
            range(test.start + first, test.start + last),
        )
        for first, last in pairwise(bounds)
    ]


def _check_folds(folds: Sequence[Fold], num_times: int) -> None:
    """Raise unless each fold trains on rows and plays later ones, and none is played twice."""
    if not folds:
        raise ValueError("Expected at least one fold. Got none.")
    for train, test in folds:
        in_order = train.start >= 0 and train.stop <= test.start < test.stop <= num_times
        if not in_order or (train.step, test.step) != (1, 1) or len(train) < MIN_TRAIN_TIMES:
            raise ValueError(
                f"Expected at least {MIN_TRAIN_TIMES} of {num_times} rows to train on, and later "
                f"ones to play, without steps. Got {_rows(train)} and {_rows(test)}."
            )
    tests = sorted((fold.test for fold in folds), key=lambda rows: rows.start)
    for one, other in pairwise(tests):
        if other.start < one.stop:
            raise ValueError(
                f"Expected folds that play different rows. Got {_rows(one)} and {_rows(other)}."
            )


def _rows(rows: range) -> str:
    return f"{rows.start}:{rows.stop}"
