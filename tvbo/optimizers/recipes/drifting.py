"""Algorithms for objectives that drift (Bogunovic et al., 2016), and GP-UCB, which they extend."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from tvbo.acquisition import Acquisition, BetaSchedule
from tvbo.optimizers.builder import GPOptions, build, ucb
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.retention import Reset, SizeLimit

DEFAULT_BETA = 2.5
"""β of :func:`tv_gp_ucb` on a box where kernel and drift are learned, from measurements."""

DEFAULT_LIMIT = 100
"""Number of observations that it keeps, the most informative ones about the present. Where a loop
goes on for hundreds of rounds, it did better so than with twice as many, at half the time."""


def set_defaults(forgetting_rate: float | None, options: GPOptions) -> bool:
    """Fill in the defaults of a box whose kernel and drift are learned; return whether they apply.

    Args:
        forgetting_rate: The drift, or None.
        options: Those of a recipe, whose ``temporal_kernel`` and ``retention`` are set there.
    """
    drift = (forgetting_rate, options.get("temporal_kernel"), options.get("covar_module"))
    if options.get("bounds") is None or any(given is not None for given in drift):
        return False
    options["temporal_kernel"] = "auto"
    if options.get("retention") is None:
        options["retention"] = SizeLimit(DEFAULT_LIMIT)
    return True


@recipe()
def tv_gp_ucb(*, forgetting_rate: float | None = None, **options: Unpack[GPOptions]) -> GPOptimizer:
    """Build TV-GP-UCB: old data are forgotten smoothly (Bogunovic et al., 2016, Algorithm 2).

    On a box, with neither kernel nor drift given, it is what did best where
    all is learned, not the paper's algorithm: ``temporal_kernel="auto"``, with a Matérn-5/2 kernel
    over actions; β = 2.5 with a correction for the edge of the box
    (:class:`tvbo.acquisition.EdgeCorrectedUCB`); and ``retention=SizeLimit(100)``, so that a round
    costs the same at any age of the loop. Whatever of these is given counts.
    :class:`tvbo.retention.KeepAll` keeps all observations, and
    ``temporal_kernel=TemporalDecayKernel()`` learns ε by maximum likelihood.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`.
    """
    rule = _edge_corrected_ucb if set_defaults(forgetting_rate, options) else ucb
    return build(GPOptimizer, forgetting_rate=forgetting_rate, rule=rule, **options)


@recipe()
def gp_ucb(**options: Unpack[GPOptions]) -> GPOptimizer:
    """Build GP-UCB (Srinivas et al., 2010): TV-GP-UCB that never forgets, ε = 0.

    Args:
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`.
    """
    return tv_gp_ucb(forgetting_rate=0.0, **options)


@recipe()
def r_gp_ucb(*, every: float, start: float = 1.0, **options: Unpack[GPOptions]) -> GPOptimizer:
    """Build R-GP-UCB: GP-UCB that resets (Bogunovic et al., 2016, Algorithm 1).

    A ``retention`` of yours sees what a reset left.

    Args:
        every: Block length N, in units of time; see :func:`tvbo.logs.block_length.block_length`.
        start: Time at which the first block begins.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`.
    """
    reset, given = Reset(every=every, start=start), options.get("retention")
    # The reset comes first: a limit on the size then counts the observations of the block alone.
    options["retention"] = reset if given is None else reset & given
    return gp_ucb(**options)


def _edge_corrected_ucb(beta: float | BetaSchedule | None) -> Acquisition:
    return replace(ucb(DEFAULT_BETA if beta is None else beta), edge_correction=True)
