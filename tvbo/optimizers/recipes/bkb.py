"""Budgeted kernelized bandits (Calandriello et al., 2019)."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import Acquisition, BetaSchedule
from tvbo.acquisition.bkb_beta import BKBBeta
from tvbo.optimizers.bkb import BKB
from tvbo.optimizers.nystrom_surrogate import NystromSurrogate
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import acquisition_or_ucb, all_at_once, stale_cutoff
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import Retention
from tvbo.search_space import Bounds, InputLayout, make_search_space

QBAR = 5.0
"""Within the 2 to 10 that the authors' program advises."""


def bkb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    qbar: float = QBAR,
    delta: float = 0.1,
    epsilon: float = 0.5,
    norm_bound: float = 1.0,
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
) -> BKB:
    r"""BKB: UCB on a sketch whose inducing points are drawn anew in each round.

    Each observation is drawn with probability in proportion to the posterior variance at it, so the
    set follows the effective dimension of what was explored (Calandriello et al., 2019, Algorithm
    1). The paper's function does not drift; with a ``forgetting_rate``, an old observation has its
    variance at its own time, and no theorem holds.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set, the paper's case.
        qbar: Oversampling :math:`\bar q`: the expected size of the set grows with it. The theorems
            ask for :func:`tvbo.acquisition.bkb_qbar`, which is hundreds.
        delta: Of :class:`tvbo.acquisition.BKBBeta`, with ``epsilon`` and ``norm_bound``;
            without effect where ``acquisition`` or ``beta`` is given.
        epsilon: See there.
        norm_bound: See there.
        acquisition: Another rule for the next action, such as expected improvement. None: UCB.
        beta: β of UCB, a number or a schedule by round. None: the width of the paper's theorem.
        covar_module: Kernel over actions; None learns BoTorch's default.
        forgetting_rate: ε of the drift, per unit of time; None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there.
        likelihood: See there.
        retention: See there.
        pending: See there.
        refit: See there.
        generator: See there; the draws of inducing points are from it as well.

    Raises:
        ValueError: as :func:`tv_gp_ucb`; if both ``acquisition`` and ``beta`` are given; or if
            ``qbar``, ``delta``, ``epsilon`` or ``norm_bound`` is out of range.
    """
    width = BKBBeta(norm_bound=norm_bound, delta=delta, epsilon=epsilon)
    acquisition = acquisition_or_ucb(acquisition, beta, default=width)
    search_space = all_at_once(make_search_space(bounds, choices))
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
    return BKB(
        search_space,
        NystromSurrogate(dense, qbar),
        acquisition,
        retention=stale_cutoff(dense) if retention is None else retention,
        pending=pending,
        layout=dense.layout,
        generator=generator,
        initial=dense.num_initial(),
    )
