"""Thompson sampling."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import BetaSchedule, ThompsonSampling
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import gp_optimizer
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import Retention
from tvbo.search_space import Bounds, InputLayout, make_search_space


def gp_ts(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    beta: float | BetaSchedule = 1.0,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = 0.0,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    r"""GP-TS: the best action of a function drawn from the posterior (Chowdhury, Gopalan, 2017).

    Open trials are hallucinated, as in the other recipes: the draw is from the posterior whose
    variance is as if all outcomes had come. With ``pending=IgnorePending()`` it is from the
    posterior by the outcomes that have come, as in the paper; draws differ in that case, too, but
    may name the same action.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        beta: The draw has :math:`\sqrt{\beta_t}` times the posterior's standard deviation; see
            :class:`tvbo.acquisition.ThompsonSampling`.
        covar_module: Kernel over actions; None learns BoTorch's default.
        forgetting_rate: ε of the drift, per unit of time; None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there.
        likelihood: See there.
        retention: See there.
        pending: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: as :func:`tv_gp_ucb`.
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
    acquisition = ThompsonSampling(beta)
    return gp_optimizer(search_space, dense, acquisition, retention, generator, pending=pending)
