"""Algorithms for objectives that drift (Bogunovic et al., 2016)."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, BetaSchedule, LogBeta
from tvbo.acquisition.beta import as_beta_schedule
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import gp_optimizer
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import Reset, Retention
from tvbo.search_space import Bounds, InputLayout, make_search_space


def tv_gp_ucb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = None,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """TV-GP-UCB: old data forgotten smoothly (Bogunovic et al., 2016, Algorithm 2).

    Where hyperparameters are learned in each round, the model is a
    :class:`tvbo.models.TimeVaryingGP`. Otherwise the same posterior takes in what is new: a
    :class:`tvbo.models.StreamingGP` on a finite set, at constant cost, a
    :class:`tvbo.models.IncrementalGP` on a box.

    Where hyperparameters are learned, actions fill the space until there are two observations or
    open trials for each number to be learned, or each action of a finite set was tried once;
    attached ones count. With all given, there is no such start.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        covar_module: Kernel over actions. At a refit, those of its parameters that require
            gradients are learned, on a copy. None learns BoTorch's default.
        forgetting_rate: ε per unit of time, in [0, 1]. None learns it.
        noise_variance: σ², in squared units of the reward, for outcomes told without their own.
            None learns it.
        mean_module: Prior mean; None is zero where nothing is learned, else a learned constant.
        likelihood: As in :class:`tvbo.models.TimeVaryingGP`, for a learned noise.
        beta: A number, or a schedule by round; default ``0.8 log(4 t)``.
        retention: Which observations stay. None: all, but where nothing is ever learned and ε > 0,
            those whose weight has fallen to 1e-12 are let go.
        pending: What open trials contribute. None is :class:`tvbo.optimizers.Hallucinate`: their
            posterior means stand in, so that asking again before an outcome is told gives another
            action. The paper, which knows no delay, has :class:`tvbo.optimizers.IgnorePending`;
            without open trials both choose alike.
        refit: When hyperparameters are learned; None: never if all are given, else in each round.
        generator: Source of randomness; default a fresh one with seed 0.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given, or if a parameter is
            out of range.
    """
    search_space = make_search_space(bounds, choices)
    dense = GPSurrogate(
        InputLayout(search_space.dim),
        search_space.bounds,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        refit=refit,
    )
    return gp_optimizer(
        search_space, dense, UCB(as_beta_schedule(beta)), retention, generator, pending=pending
    )


def gp_ucb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    covar_module: Kernel | None = None,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """GP-UCB (Srinivas et al., 2010): TV-GP-UCB that never forgets, ε = 0.

    Arguments as in :func:`tv_gp_ucb`.
    """
    return tv_gp_ucb(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        forgetting_rate=0.0,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=pending,
        refit=refit,
        generator=generator,
    )


def r_gp_ucb(
    *,
    every: float,
    start: float = 1.0,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    covar_module: Kernel | None = None,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """R-GP-UCB: GP-UCB that resets (Bogunovic et al., 2016, Algorithm 1).

    Args:
        every: Block length N, in units of time; see :func:`tvbo.theory.block_length`.
        start: Time at which the first block begins.
        bounds: This and the other arguments as in :func:`tv_gp_ucb`.
        choices: See there.
        covar_module: See there.
        noise_variance: See there.
        mean_module: See there.
        likelihood: See there.
        beta: See there.
        pending: See there.
        refit: See there.
        generator: See there.
    """
    return gp_ucb(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=Reset(every=every, start=start),
        pending=pending,
        refit=refit,
        generator=generator,
    )
