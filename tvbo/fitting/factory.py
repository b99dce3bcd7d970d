"""The likelihood that fits the shape of a log."""

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
"""Observations up to which the dense likelihood is used: 3,000 take some seconds a step."""

MAX_ACTIONS = 1000
"""Distinct actions up to which a log too long for the dense likelihood goes by exact blocks. At 600
they take as long as the Vecchia approximation, which is not exact; at this many, some times
longer."""

BLOCKS_PAY = 2
"""Blocks are quicker than the dense factorization in logs this many times as long as a block and
the distinct actions together: measured, for works of N (b + n)² and N³."""

DriftLikelihood = DenseLikelihood | PanelLikelihood | BlockLikelihood | VecchiaLikelihood
"""Any of them: called with ρ and σ², gives the log likelihood and the mean it was taken at."""


def make_likelihood(log: DriftLog, covar_module: Kernel, mean: float | None) -> DriftLikelihood:
    """The quickest exact likelihood of a log; an approximate one only where none is quick enough.

    Args:
        log: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """
    panel = Panel.from_log(log)
    # A panel of one action gains nothing from its modes.
    if panel is not None and len(log) > len(panel.values):
        return PanelLikelihood(panel, covar_module, mean)
    n_actions = len(torch.unique(log.actions, dim=0))
    if n_actions <= MAX_ACTIONS and len(log) > BLOCKS_PAY * (BLOCK + n_actions):
        return BlockLikelihood(log, covar_module, mean)
    if len(log) <= MAX_DENSE:
        return DenseLikelihood(log, covar_module, mean)
    return VecchiaLikelihood(log, covar_module, mean)
