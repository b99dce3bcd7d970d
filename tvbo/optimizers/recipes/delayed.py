"""Algorithms for outcomes that come late."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import BetaSchedule, LogBeta
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import ConstantLiar, Hallucinate
from tvbo.optimizers.recipes.drifting import tv_gp_ucb
from tvbo.optimizers.recipes.thompson import gp_ts
from tvbo.optimizers.refit import Refit
from tvbo.retention import Retention
from tvbo.search_space import Bounds


def gp_bucb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    retention: Retention | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    r"""GP-BUCB: open trials are hallucinated (Desautels, Krause, Burdick, 2014, Algorithm 2).

    UCB whose mean is that of the outcomes that have come, and whose variance is as if all had.
    Their theorem widens β by :math:`\exp(2C)` for ``C`` the information that open trials may hold;
    their experiments, and the default here, do not. It is :func:`gp_ucb` by another name, since
    ``pending=Hallucinate()`` is the default of the recipes; here it cannot be changed.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        beta: A number, or a schedule by round; default ``0.8 log(4 t)``.
        covar_module: Kernel over actions; None learns BoTorch's default.
        forgetting_rate: ε of the drift, per unit of time; None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there.
        likelihood: See there.
        retention: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: as :func:`tv_gp_ucb`.
    """
    return tv_gp_ucb(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=Hallucinate(),
        refit=refit,
        generator=generator,
    )


def gp_ucb_sdf(
    *,
    minimum: float,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    retention: Retention | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """GP-UCB-SDF: the least value stands in for late outcomes (Verma, Dai, Low, 2022).

    In the paper an outcome that is later than ``m`` rounds keeps its stand-in for ever. Here it
    does as long as the trial is open: to give up on trials, expire them.

    Args:
        minimum: The least value of the function, which must be known, in units of the reward.
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        beta: A number, or a schedule by round; default ``0.8 log(4 t)``.
        covar_module: Kernel over actions; None learns BoTorch's default.
        forgetting_rate: ε of the drift, per unit of time; None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there.
        likelihood: See there.
        retention: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: if ``minimum`` is not finite, or as :func:`tv_gp_ucb`.
    """
    return tv_gp_ucb(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=ConstantLiar(minimum),
        refit=refit,
        generator=generator,
    )


def gp_ts_sdf(
    *,
    minimum: float,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    beta: float | BetaSchedule = 1.0,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    retention: Retention | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """GP-TS-SDF: Thompson sampling with the least value for late outcomes (Verma et al., 2022).

    Arguments and errors as in :func:`gp_ts` and :func:`gp_ucb_sdf`.
    """
    return gp_ts(
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=ConstantLiar(minimum),
        refit=refit,
        generator=generator,
    )
