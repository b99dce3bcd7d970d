"""The choice of the likelihood by the shape of the log."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel

from tvbo.fitting.blocks import BLOCK, BlockLikelihood
from tvbo.fitting.dataset import DriftLog
from tvbo.fitting.dense import DenseLikelihood
from tvbo.fitting.panel import PanelLikelihood
from tvbo.fitting.panel_log import Panel
from tvbo.fitting.vecchia import VecchiaLikelihood

MAX_DENSE = 3000
"""Observations up to which the dense likelihood is used; 3,000 take some seconds per evaluation."""

MAX_ACTIONS = 1000
"""Distinct actions up to which exact blocks are used for a log too long for the dense likelihood.
At 600 they take as long as the Vecchia approximation; at this many, some times longer."""

BLOCKS_PAY = 2
"""Blocks are faster than the dense factorization in logs more than this many times as long as the
sum of block size and distinct actions, as measured; the operations are N (b + n)² and N³."""

DriftLikelihood = DenseLikelihood | PanelLikelihood | BlockLikelihood | VecchiaLikelihood
"""A callable of ρ and σ² that returns the log likelihood and the mean at which it was evaluated."""


def make_likelihood(log: DriftLog, covar_module: Kernel, mean: float | None) -> DriftLikelihood:
    """Build the fastest exact likelihood of a log, or an approximate one if none is fast enough.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """
    panel = Panel.from_log(log)
    # For a panel of one action, the modes save nothing.
    if panel is not None and len(log) > len(panel.values):
        return PanelLikelihood(panel, covar_module, mean)
    n_actions = len(torch.unique(log.actions, dim=0))
    if n_actions <= MAX_ACTIONS and len(log) > BLOCKS_PAY * (BLOCK + n_actions):
        return BlockLikelihood(log, covar_module, mean)
    if len(log) <= MAX_DENSE:
        return DenseLikelihood(log, covar_module, mean)
    return VecchiaLikelihood(log, covar_module, mean)
