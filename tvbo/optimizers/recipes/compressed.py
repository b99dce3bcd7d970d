"""Algorithms that keep only what informs (Bedi et al.)."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, BetaSchedule, LogBeta
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import acquisition_or_ucb, gp_optimizer, stale_cutoff
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import EntropyThreshold, Retention
from tvbo.retention.entropy import Mode
from tvbo.search_space import Bounds, InputLayout, make_search_space


def compressed_gp(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    budget: float = 0.01,
    mode: Mode = "skip",
    floor: int = 0,
    acquisition: Acquisition | None = None,
    beta: float | BetaSchedule | None = None,
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
    r"""Compressed GP bandits: CUB, CEI and their like (Bedi et al., Algorithm 1).

    A candidate whose outcome is expected to bring no more than ``budget`` nats is not evaluated, or
    evaluated and not kept; see :class:`tvbo.retention.EntropyThreshold`, which works as
    ``retention`` of the other recipes as well. Other policies can be joined to it.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        budget: ε in nats. The paper's experiments have ``1e-4``, which lets one action be sampled
            5,000 times; its theorems :math:`\tfrac{1}{2} \log(1 + T^{-\alpha})`, see
            :func:`tvbo.theory.compression_budget`.
        mode: ``"skip"`` or ``"discard"``.
        floor: While fewer observations than this are held, nothing is refused. Where
            hyperparameters are learned, nothing is refused before the first fit in any case.
        acquisition: Rule for the next action, such as :class:`tvbo.acquisition.LogEI`; None is
            UCB.
        beta: β of UCB, a number or a schedule by round; None is ``0.8 log(4 t)``.
        covar_module: Kernel over actions; None learns BoTorch's default.
        forgetting_rate: ε of the drift, per unit of time; None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there.
        likelihood: See there.
        retention: A policy that comes before the entropy threshold. None: where nothing is ever
            learned, what the drift has made worthless is let go.
        pending: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: as :func:`tv_gp_ucb`; if both ``acquisition`` and ``beta`` are given; or as
            :class:`tvbo.retention.EntropyThreshold`.
    """
    acquisition = acquisition_or_ucb(acquisition, beta, default=UCB(LogBeta()))
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
    threshold = EntropyThreshold(budget, mode, floor)
    if retention is None:
        retention = stale_cutoff(dense)
    retention = threshold if retention is None else retention & threshold
    return gp_optimizer(search_space, dense, acquisition, retention, generator, pending=pending)
