"""The exact log likelihood of a log over few distinct actions, block by block in time."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import log_density, whiten

BLOCK = 80
"""Observations in a block: smaller blocks cost more time between blocks, larger ones within."""


class BlockLikelihood:
    r"""Log likelihood of any log over ``n`` distinct actions, exact, in time linear in the log.

    The function over the actions is a Markov process in time. So the future depends on the past
    only by the posterior of ``f`` over the ``n`` actions at the last time. With
    :math:`\phi(d) = e^{-\rho d / 2}`, at times :math:`s, s'` that are later than a posterior by
    :math:`d, d'`, ``f`` has the mean :math:`\phi(d) m` and the covariance
    :math:`\phi(|s - s'|) K - \phi(d) \phi(d') R`. The covariance of each block of ``b``
    observations given that posterior is factorized, and the posterior updated:
    :math:`\log p(y) = \sum_j \log p(y_j \mid y_1, \dots, y_{j-1})`. Costs
    :math:`O(N (b + n)^2)`; memory :math:`O(N (b + n))`.

    Gaps, unequal steps, repeats, many observations at one time and known noise variances are
    allowed. Each segment begins with the prior.

    Args:
        log: The observations, in any order.
        covar_module: The kernel over actions.
        mean: The prior mean; None integrates it out.
        block: Observations in a block.
    """

    def __init__(self, log: DriftLog, covar_module: Kernel, mean: float | None, block: int = BLOCK):
        self.covar_module, self.mean = covar_module, mean
        self.actions, arms = torch.unique(log.actions, dim=0, return_inverse=True)
        order = log.order
        self.log, self.arms = log.rows(order), arms[order]
        self.blocks = self.log.blocks(block)

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance of a block is singular to rounding.
        """
        log, covar = self.log, self.covar_module(self.actions).to_dense()
        n, end, white, diagonals = len(covar), log.times[0], [], []
        series = torch.stack([log.Y, torch.ones_like(log.Y)], dim=-1)
        for rows, is_first in self.blocks:
            arms, times = self.arms[rows], log.times[rows]
            if is_first:
                # R, and below it the means of outcomes and ones.
                state, end = covar.new_zeros(n + 2, n), times[0]
            since = torch.exp(-0.5 * rate * (times - end))[:, None]
            until = torch.exp(-0.5 * rate * (times[-1] - times))[:, None]
            correlation = torch.exp(-0.5 * rate * (times[:, None] - times).abs())
            kept, prior, aged = since[-1], covar[arms], state[:, arms].mT * since
            noise = noise_variance if log.Yvar is None else log.Yvar[rows]
            of_block = prior[:, arms] * correlation - aged[:, arms] * since.mT
            of_block = of_block + torch.diag(noise.expand(len(arms)))
            crossed = prior * until - kept * aged[:, :n]
            root, solved = whiten(
                of_block, torch.cat([crossed, series[rows] - aged[:, n:]], dim=-1)
            )
            faded = torch.cat([kept**2 * state[:n], kept * state[n:]])
            state, end = faded + solved.mT @ solved[:, :n], times[-1]
            white.append(solved[:, n:])
            diagonals.append(root.diagonal())
        return log_density(torch.cat(white), torch.cat(diagonals), self.mean)
