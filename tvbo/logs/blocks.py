"""The exact log likelihood of a log over few distinct actions, block by block in time."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.logs.block_step import ActionPosterior, Block, BlockGradient, BlockStep
from tvbo.logs.dataset import DriftLog
from tvbo.logs.dense import weighted_mean, with_gradient

BLOCK = 80
"""Observations in a block: smaller blocks cost more time between blocks, larger ones within."""


class BlockLikelihood:
    r"""Log likelihood of any log over ``n`` distinct actions, exact, in time linear in the log.

    The function over the actions is a Markov process in time. So the future depends on the past
    only by the posterior of ``f`` over the ``n`` actions at the last time. The covariance of each
    block of ``b`` observations given that posterior is factorized, and the posterior updated:
    :math:`\log p(y) = \sum_j \log p(y_j \mid y_1, \dots, y_{j-1})`. Costs
    :math:`O(N (b + n)^2)`; memory :math:`O(N (b + n))`.

    Gaps, unequal steps, repeats, many observations at one time and known noise variances are
    allowed. Each segment begins with the prior.

    Args:
        log: The observations, in any order.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
        block: Observations in a block.
    """

    def __init__(self, log: DriftLog, covar_module: Kernel, mean: float | None, block: int = BLOCK):
        self.covar_module = covar_module
        self.mean = mean
        self.actions, arms = torch.unique(log.actions, dim=0, return_inverse=True)
        log, arms = log.rows(log.order), arms[log.order].numpy()
        self.n_observations = len(log)
        self.blocks = []
        end = 0.0
        for rows, is_first in log.blocks(block):
            times = log.times[rows].numpy()
            outcomes = log.Y[rows].numpy()
            self.blocks.append(
                Block(
                    arms=arms[rows],
                    times=times,
                    series=np.stack([outcomes, np.ones_like(outcomes)]),
                    noise=None if log.Yvar is None else log.Yvar[rows].numpy(),
                    start=times[0] if is_first else end,
                    is_first=is_first,
                )
            )
            end = times[-1]

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance of a block is singular to rounding.
        """
        covar = self.covar_module(self.actions).to_dense()
        prior = covar.detach().numpy()
        steps: list[BlockStep] = []
        for block in self.blocks:
            if block.is_first:
                before = ActionPosterior.prior(len(block.series), len(prior))
            else:
                before = steps[-1].after()
            steps.append(BlockStep(block, before, prior, rate.item(), noise_variance.item()))
        white = np.concatenate([step.white for step in steps])
        mean = self.mean
        if mean is None:
            mean = weighted_mean(white[:, 0], white[:, 1])
        residual = white[:, 0] - mean * white[:, 1]
        value = -0.5 * float(
            residual @ residual
            + sum(step.log_determinant() for step in steps)
            + self.n_observations * math.log(2 * math.pi)
        )
        if not torch.is_grad_enabled():
            return torch.tensor(value, dtype=torch.float64), mean
        total = BlockGradient.zero(len(prior))
        for step in reversed(steps):
            step.add_gradient(total, np.array([1.0, -mean]))
        return with_gradient(
            value,
            (rate, total.rate),
            (noise_variance, total.noise_variance),
            (covar, 0.5 * (total.covar + total.covar.T)),
        ), mean
