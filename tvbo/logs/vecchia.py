"""The approximate log likelihood of a long log over many actions, by Vecchia's approximation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.logs.dataset import DriftLog
from tvbo.logs.dense import weighted_mean, whiten, with_gradient

BLOCK = 250
"""Observations in a block."""

CONDITIONING_SIZE = 500
"""Observations before a block on which it is conditioned. For a given number of these, a block of
half the size is the cheapest: the cost per observation is (conditioning_size + block)³ / block."""


@dataclass(frozen=True)
class ConditionedBlock:
    """A block and the observations on which it is conditioned.

    Args:
        log: All of these observations, those of the block last.
        given: Number of observations before the block.
        neglected_age: Time from the latest omitted observation to the block; infinite if there is
            none.
    """

    log: DriftLog
    given: int
    neglected_age: float


class VecchiaLikelihood:
    r"""Log likelihood by blocks in time, each conditioned on the observations just before it.

    .. math:: \log p(y) \approx \sum_j \log p(y_j \mid y_{j-m}, \dots, y_{j-1})

    (Vecchia, 1988; by blocks, Stein, Chi and Welty, 2004). Earlier observations are omitted: they
    are old, and most of their information is contained in the later ones. It is exact if no
    observation is omitted. Costs :math:`O(N (m + b)^3 / b)`.

    Args:
        log: The observations, in any order.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
        block: Observations in a block, b.
        conditioning_size: Observations before a block on which it is conditioned, m.
    """

    def __init__(
        self,
        log: DriftLog,
        covar_module: Kernel,
        mean: float | None,
        block: int = BLOCK,
        conditioning_size: int = CONDITIONING_SIZE,
    ):
        self.covar_module = covar_module
        self.mean = mean
        self.conditioning_size = conditioning_size
        log = log.rows(log.order)
        self.n_observations = len(log)
        self.blocks = []
        begin = 0
        for rows, is_first in log.blocks(block):
            begin = rows.start if is_first else begin
            first = max(begin, rows.start - conditioning_size)
            age = math.inf
            if first > begin:
                age = (log.times[rows.start] - log.times[first - 1]).item()
            together = log.rows(slice(first, rows.stop))
            self.blocks.append(ConditionedBlock(together, rows.start - first, age))

    def neglected_weight(self, rate: float) -> float:
        r"""Return an upper bound on the share of variance that omitted observations explain.

        Observations older than ``d`` explain at most the share :math:`(1 - \varepsilon)^d` of the
        variance of the function. Here ``d`` is the age of the latest omitted observation, and the
        bound is that of a block without observations in between. It is the largest of all blocks;
        zero if no observation is omitted.

        Args:
            rate: ρ.
        """
        return max(
            0.0 if math.isinf(block.neglected_age) else math.exp(-rate * block.neglected_age)
            for block in self.blocks
        )

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used if the noise variances of the log are known.

        Raises:
            NotPSDError: if the covariance of a block is singular to rounding.
        """
        with torch.no_grad():
            factors = [
                self._factor(self._covar(block, rate, noise_variance), block)
                for block in self.blocks
            ]
        white = torch.cat([white for white, _ in factors])
        mean = self.mean
        if mean is None:
            mean = weighted_mean(white[:, 0], white[:, 1])
        residual = white[:, 0] - mean * white[:, 1]
        value = -0.5 * (
            residual.square().sum().item()
            + sum(log_determinant for _, log_determinant in factors)
            + self.n_observations * math.log(2 * math.pi)
        )
        if not torch.is_grad_enabled():
            return torch.tensor(value, dtype=torch.float64), mean
        inputs = [
            x for x in (rate, noise_variance, *self.covar_module.parameters()) if x.requires_grad
        ]
        totals = [torch.zeros_like(x) for x in inputs]
        for block in self.blocks:
            # Differentiated block by block, because the graphs of all would need too much memory.
            covar = self._covar(block, rate, noise_variance)
            gradients = torch.autograd.grad(
                covar, inputs, self._weights(covar.detach(), block, mean), allow_unused=True
            )
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total += gradient
        return with_gradient(value, *zip(inputs, totals, strict=True)), mean

    def _covar(self, block: ConditionedBlock, rate: Tensor, noise_variance: Tensor) -> Tensor:
        """Return the covariance of the outcomes of a block and those before it."""
        log = block.log
        lags = (log.times.unsqueeze(-1) - log.times).abs()
        covar: Tensor = self.covar_module(log.actions).to_dense() * torch.exp(-0.5 * rate * lags)
        noise = log.Yvar if log.Yvar is not None else noise_variance.expand(len(log))
        return covar + torch.diag(noise)

    @staticmethod
    def _whiten(covar: Tensor, block: ConditionedBlock) -> tuple[Tensor, Tensor]:
        """Return the Cholesky factor, and outcomes and ones whitened by it."""
        Y = block.log.Y
        return whiten(covar, torch.stack([Y, torch.ones_like(Y)], dim=-1))

    def _factor(self, covar: Tensor, block: ConditionedBlock) -> tuple[Tensor, float]:
        """Return whitened outcomes and ones of the conditioned block, and the log determinant."""
        root, white = self._whiten(covar, block)
        diagonal = root.diagonal()[block.given :]
        return white[block.given :], 2 * diagonal.log().sum().item()

    def _weights(self, covar: Tensor, block: ConditionedBlock, mean: float) -> Tensor:
        r"""Return the derivative of the block's term with respect to the covariance.

        It is (25) of all observations less (25) of those before the block. With
        :math:`G = L^{-\top} E`, the columns of the block, the inverses differ by :math:`G G^\top`.
        """
        root, white = self._whiten(covar, block)
        residual = white[:, :1] - mean * white[:, 1:]
        unit = torch.eye(len(covar), dtype=covar.dtype)[:, block.given :]
        solved = torch.linalg.solve_triangular(
            root.mT, torch.cat([unit, residual], dim=-1), upper=True
        )
        columns, alpha = solved[:, :-1], solved[:, -1:]
        given = alpha - columns @ residual[block.given :]
        weights: Tensor = alpha @ alpha.mT - given @ given.mT - columns @ columns.mT
        return 0.5 * weights
