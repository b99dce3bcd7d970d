"""Backtest on functions drawn from a fitted model, for logs with one action at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import torch
from torch import Generator, Tensor

from tvbo.evaluation.backtesting.algorithms import check_names, panel_algorithms
from tvbo.evaluation.backtesting.backtest import collect
from tvbo.evaluation.backtesting.models import DriftModel
from tvbo.evaluation.backtesting.play import Stretch, play
from tvbo.evaluation.backtesting.result import BacktestResult
from tvbo.kernels import CovarianceMatrixKernel, temporal_correlation
from tvbo.logs import DriftFit
from tvbo.spaces import FiniteSpace
from tvbo.spaces.observations import check_last_dimension
from tvbo.test_functions.drifting_gp import covariance_root
from tvbo.values import as_numbers, check_count

HORIZON, DRAWS = 300, 10
"""Times that are played, and functions that are drawn, by default."""

LARGEST_SET = 5000
"""Most actions of a drawn function: a draw takes the Cholesky factor of their covariance."""


def simulate_backtest(
    fit: DriftFit,
    train_X: Tensor,
    algorithms: Sequence[str] | None = None,
    *,
    choices: Tensor | None = None,
    horizon: int = HORIZON,
    draws: int = DRAWS,
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
    if not 2 <= n <= LARGEST_SET:
        raise ValueError(f"Expected from 2 to {LARGEST_SET} choices. Got {n}.")
    past, place = train_X[:, -1].unique(return_inverse=True)
    ahead = past[-1] + fit.round_length * torch.arange(1, horizon + 1, dtype=torch.float64)
    root = covariance_root(space.choices, fit.covar_module)
    # The choices are known to the algorithms by number.
    kernel = CovarianceMatrixKernel(root @ root.mT)
    model = DriftModel(given=replace(fit, covar_module=kernel))
    known = panel_algorithms(horizon=horizon, model=model)
    del known["fitted"]
    if algorithms is not None:
        known = {name: known[name] for name in check_names(algorithms, known)}
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
    played = play(stretches, known, range(seed, seed + starts), progress, executor)
    arms = [", ".join(f"{x:.4g}" for x in row) for row in space.choices.tolist()]
    # A drawn function is a block.
    block_length = horizon * fit.round_length
    result = collect(
        played, stretches, known, arms, block_length, fit.time_unit, unit, simulated=True
    )
    messages = [*fit.messages, *result.messages]
    return replace(result, messages=messages, is_undecided=fit.is_undetermined)


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
