"""What to compare contextual algorithms with: the context ignored, or never shared across."""

from __future__ import annotations

from functools import partial

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, BetaSchedule, LogBeta
from tvbo.acquisition.beta import as_beta_schedule
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import gp_optimizer
from tvbo.optimizers.recipes.drifting import tv_gp_ucb
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.separate import SeparateContexts
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import Retention
from tvbo.search_space import Bounds, InputLayout, make_context_space, make_search_space


def merged(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """One GP-UCB that ignores the context (Krause, Ong, 2011, Section 6).

    It is asked and told like :func:`cgp_ucb`, but its model has no place for contexts. With a
    ``forgetting_rate`` it is TV-GP-UCB.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box of actions; or
        choices: ``n x d`` for a finite set of actions.
        context_bounds: ``2 x c`` tensor, or ``c`` pairs: the range of contexts to expect; or
        contexts: ``m x c``, the list of them.
        covar_module: Kernel over actions; this and the others as in :func:`tv_gp_ucb`.
        forgetting_rate: ε per unit of time; None learns it.
        noise_variance: See there.
        mean_module: See there.
        likelihood: See there.
        beta: See there.
        retention: See there.
        pending: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: as :func:`tv_cgp_ucb`.
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
    declared = make_context_space(context_bounds, contexts)
    return gp_optimizer(
        search_space, dense, UCB(as_beta_schedule(beta)), retention, generator, declared, pending
    )


def separate(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    bins: int | None = None,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> SeparateContexts:
    """A GP-UCB of its own for every context (Krause, Ong, 2011, Section 6).

    β counts the rounds of each context by itself. Arguments as in :func:`merged`, and

    Args:
        bins: Parts into which each column of ``context_bounds`` is cut; required with them, and
            with them only.
        bounds: See :func:`merged`.
        choices: See there.
        context_bounds: See there.
        contexts: See there.
        covar_module: See there.
        forgetting_rate: See there.
        noise_variance: See there.
        mean_module: See there.
        likelihood: See there.
        beta: See there.
        retention: See there.
        pending: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: as :func:`tv_cgp_ucb`, or as :class:`tvbo.optimizers.SeparateContexts`.
    """
    # No closure: that could not be saved.
    make = partial(
        tv_gp_ucb,
        bounds=bounds,
        choices=choices,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=pending,
        refit=refit,
    )

    search_space = make_search_space(bounds, choices)
    return SeparateContexts(
        search_space, make_context_space(context_bounds, contexts), make, bins, generator
    )
