"""The log likelihood of a long log over many actions: each block given the stretch before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.fitting.dataset import DriftLog
from tvbo.fitting.linear_algebra import weighted_mean, whiten, with_gradient

BLOCK = 250
"""Observations in a block."""

REACH = 500
"""Observations before a block that it is conditioned on. Twice a block is the cheapest for a given
reach: the work is (reach + block)³ / block an observation."""


@dataclass(frozen=True)
class Window:
    """A block and what it is conditioned on.

    Args:
        log: The observations of both, those of the block last.
        given: Number of observations before the block.
        neglected_age: Time from the nearest observation left out to the block; infinite if none is.
    """

    log: DriftLog
    given: int
    neglected_age: float


class VecchiaLikelihood:
    r"""Log likelihood by blocks in time, each conditioned on the stretch just before it.

    .. math:: \log p(y) \approx \sum_j \log p(y_j \mid y_{j-m}, \dots, y_{j-1})

    (Vecchia, 1988; by blocks, Stein, Chi and Welty, 2004). What lies farther back is neglected: it
    is old, and what it knew is mostly known to the stretch. Exact where the stretch reaches back to
    the first observation. Costs :math:`O(N (m + b)^3 / b)`.

    Args:
        log: The observations, in any order.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
        block: Observations in a block, b.
        reach: Observations before a block that it is conditioned on, m.
    """

    def __init__(
        self,
        log: DriftLog,
        covar_module: Kernel,
        mean: float | None,
        block: int = BLOCK,
        reach: int = REACH,
    ):
        self.covar_module = covar_module
        self.mean = mean
        self.reach = reach
        log = log.rows(log.order)
        self.n_observations = len(log)
        self.windows = []
        begin = 0
        for rows, is_first in log.cut(block):
            begin = rows.start if is_first else begin
            first = max(begin, rows.start - reach)
            age = math.inf
            if first > begin:
                age = (log.times[rows.start] - log.times[first - 1]).item()
            self.windows.append(Window(log.rows(slice(first, rows.stop)), rows.start - first, age))

    def neglected_weight(self, rate: float) -> float:
        r"""What the neglected observations could have told, at most, of any block.

        Of the variance of the function at a time, the share :math:`(1 - \varepsilon)^d` was there
        already a time ``d`` before. With ``d`` from the nearest observation left out, this bounds
        what those left out explain of a block if nothing lay between. The largest of all blocks;
        zero if nothing is left out.

        Args:
            rate: ρ.
        """
        return max(
            0.0 if math.isinf(window.neglected_age) else math.exp(-rate * window.neglected_age)
            for window in self.windows
        )

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Log likelihood, differentiable, and the mean it was taken at.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar; not used where the log knows its noise.

        Raises:
            NotPSDError: if the covariance of a block is singular to rounding.
        """
        with torch.no_grad():
            factors = [
                self._factor(self._covar(window, rate, noise_variance), window)
                for window in self.windows
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
        for window in self.windows:
            # Block by block, and back through the kernel at once: the graphs of all would not fit.
            covar = self._covar(window, rate, noise_variance)
            gradients = torch.autograd.grad(
                covar, inputs, self._weights(covar.detach(), window, mean), allow_unused=True
            )
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total += gradient
        return with_gradient(value, *zip(inputs, totals, strict=True)), mean

    def _covar(self, window: Window, rate: Tensor, noise_variance: Tensor) -> Tensor:
        """Of the stretch and the block together."""
        log = window.log
        lags = (log.times.unsqueeze(-1) - log.times).abs()
        covar = self.covar_module(log.actions).to_dense() * torch.exp(-0.5 * rate * lags)
        noise = log.Yvar if log.Yvar is not None else noise_variance.expand(len(log))
        return covar + torch.diag(noise)

    @staticmethod
    def _whiten(covar: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        """The Cholesky factor, and outcomes and ones whitened by it."""
        Y = window.log.Y
        return whiten(covar, torch.stack([Y, torch.ones_like(Y)], dim=-1))

    def _factor(self, covar: Tensor, window: Window) -> tuple[Tensor, float]:
        """Whitened outcomes and ones of the block given the stretch; the log determinant."""
        root, white = self._whiten(covar, window)
        diagonal = root.diagonal()[window.given :]
        return white[window.given :], 2 * diagonal.log().sum().item()

    def _weights(self, covar: Tensor, window: Window, mean: float) -> Tensor:
        r"""The derivative of the block's term in the covariance: (25) of both less of the stretch.

        With :math:`G = L^{-\top} E`, the columns of the block, the inverses differ by
        :math:`G G^\top`.
        """
        root, white = self._whiten(covar, window)
        residual = white[:, :1] - mean * white[:, 1:]
        here = torch.eye(len(covar), dtype=covar.dtype)[:, window.given :]
        solved = torch.linalg.solve_triangular(
            root.mT, torch.cat([here, residual], dim=-1), upper=True
        )
        columns, both = solved[:, :-1], solved[:, -1:]
        stretch = both - columns @ residual[window.given :]
        return 0.5 * (both @ both.mT - stretch @ stretch.mT - columns @ columns.mT)
