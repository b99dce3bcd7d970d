"""The exact log likelihood of a log over few distinct actions, block by block in time."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs
from torch import Tensor

from tvbo.logs.dataset import DriftLog
from tvbo.logs.dense import check_factored, weighted_mean, with_gradient
from tvbo.quadratic_model import Array

BLOCK = 80
"""Observations in a block: smaller blocks cost more time between blocks, larger ones within."""

SERIES = 2
"""Series that are whitened: the outcomes, and ones."""


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
            noise = None if log.Yvar is None else log.Yvar[rows].numpy()
            start = times[0] if is_first else end
            self.blocks.append(
                _Block(arms[rows], times, log.Y[rows].numpy(), noise, start, is_first)
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
        n = len(prior)
        state = np.zeros((n + SERIES, n))
        for block in self.blocks:
            state = block.forward(state, prior, rate.item(), noise_variance.item())
        white = np.concatenate([block.white[:, n:] for block in self.blocks])
        mean = self.mean
        if mean is None:
            mean = weighted_mean(white[:, 0], white[:, 1])
        weights = np.array([1.0, -mean])
        value = -0.5 * float(
            ((white @ weights) ** 2).sum()
            + sum(block.log_determinant for block in self.blocks)
            + self.n_observations * math.log(2 * math.pi)
        )
        if not torch.is_grad_enabled():
            return torch.tensor(value, dtype=torch.float64), mean
        in_rate, in_noise, in_covar, in_state = (
            0.0,
            0.0,
            np.zeros((n, n)),
            np.zeros((n + SERIES, n)),
        )
        for block in reversed(self.blocks):
            rate_part, noise_part, in_state = block.backward(in_state, weights, in_covar)
            in_rate, in_noise = in_rate + rate_part, in_noise + noise_part
        return with_gradient(
            value,
            (rate, in_rate),
            (noise_variance, in_noise),
            (covar, 0.5 * (in_covar + in_covar.T)),
        ), mean


class _Block:
    r"""Successive observations of one segment, whitened given the posterior before them.

    With :math:`\phi(d) = e^{-\rho d / 2}`, the function has, at times :math:`s, s'` that are later
    than a posterior by :math:`d, d'`, the mean :math:`\phi(d) m` and the covariance
    :math:`\phi(|s - s'|) K - \phi(d) \phi(d') R`. The state is the reduction :math:`R`, and below
    it a row :math:`m` for each series.

    Args:
        arms: ``b`` indices of their actions.
        times: ``b``, not decreasing.
        outcomes: ``b``.
        noise: ``b`` known noise variances, or None.
        start: Time of the posterior before the block, which is the last time of the previous
            block; for the first block of a segment its own first time.
        is_first: Whether the block is the first of its segment.
    """

    def __init__(
        self,
        arms: NDArray[np.int64],
        times: Array,
        outcomes: Array,
        noise: Array | None,
        start: float,
        is_first: bool,
    ):
        self.arms, self.noise, self.is_first = arms, noise, is_first
        self.series = np.stack([outcomes, np.ones_like(outcomes)], axis=-1)
        self.ages, self.left = times - start, times[-1] - times
        self.lags = np.abs(times[:, None] - times)

    def forward(self, before: Array, prior: Array, rate: float, noise_variance: float) -> Array:
        """Whiten the block; return the state after it.

        Args:
            before: ``(n + 2) x n``, the state before the block.
            prior: ``n x n`` covariance over the actions.
            rate: ρ.
            noise_variance: σ²; not used if the noise variances of the block are known.
        """
        arms, n = self.arms, len(prior)
        self.before = np.zeros_like(before) if self.is_first else before
        self.since, self.until = np.exp(-0.5 * rate * self.ages), np.exp(-0.5 * rate * self.left)
        self.kept = float(self.since[-1])
        self.prior, self.state = prior[arms], self.before[:, arms].T
        self.correlation = np.exp(-0.5 * rate * self.lags)
        aged = self.state * self.since[:, None]
        covariance = self.prior[:, arms] * self.correlation - aged[:, arms] * self.since
        covariance.flat[:: len(arms) + 1] += noise_variance if self.noise is None else self.noise
        crossed = self.prior * self.until[:, None] - self.kept * aged[:, :n]
        self.root, info = dpotrf(covariance.T, lower=1, overwrite_a=1)
        check_factored(info)
        right = np.hstack([crossed, self.series - aged[:, n:]])
        self.white = dtrtrs(self.root, right, lower=1)[0]
        self.fading = np.full((n + SERIES, 1), self.kept)
        self.fading[:n] *= self.kept
        after: Array = self.fading * self.before + self.white.T @ self.white[:, :n]
        return after

    @property
    def log_determinant(self) -> float:
        """The log determinant of the covariance of the block given the earlier ones."""
        return 2 * float(np.log(self.root.diagonal()).sum())

    def backward(
        self, in_after: Array, weights: Array, in_covar: Array
    ) -> tuple[float, float, Array]:
        """Return derivatives with respect to ρ, σ² and the state before, by backpropagation.

        Args:
            in_after: Derivative with respect to the state after the block.
            weights: The log likelihood is that of the sum of the series times these.
            in_covar: Derivative with respect to the covariance over actions, which is added to.
        """
        n, arms = self.before.shape[1], self.arms
        since, until = self.since, self.until
        # Of the products of the whitened columns, of which log likelihood and state consist.
        in_products = np.zeros((n + SERIES, n + SERIES))
        in_products[:, :n] = in_after
        in_products[n:, n:] = -0.5 * np.outer(weights, weights)
        in_products = 0.5 * (in_products + in_products.T)
        solved = dtrtrs(self.root, self.white, lower=1, trans=1)[0]
        in_right = 2 * solved @ in_products
        # LAPACK leaves the upper triangle as it was.
        inverse = np.tril(dpotri(self.root, lower=1)[0])
        inverse += np.tril(inverse, -1).T
        in_block = -0.5 * inverse - solved @ in_products @ solved.T

        here = np.zeros((len(arms), n))
        here[np.arange(len(arms)), arms] = 1.0
        in_crossed = in_right[:, :n]
        in_prior = in_crossed * until[:, None]
        in_prior += (in_block * self.correlation) @ here
        in_covar += here.T @ in_prior
        in_aged = -np.hstack([self.kept * in_crossed, in_right[:, n:]])
        in_reduced = in_block * since
        in_aged[:, :n] -= in_reduced @ here
        in_since = (in_aged * self.state).sum(1)
        in_since -= since @ (in_block * self.state[:, arms])
        in_until = (in_crossed * self.prior).sum(1)
        in_kept = -(in_crossed * self.state[:, :n] * since[:, None]).sum()
        faded = (in_after * self.before).sum(1)
        in_kept += 2 * self.kept * faded[:n].sum() + faded[n:].sum()
        in_rate = -0.5 * float(
            (in_block * self.correlation * self.prior[:, arms] * self.lags).sum()
            + in_since @ (since * self.ages)
            + in_until @ (until * self.left)
            + in_kept * self.kept * self.ages[-1]
        )
        in_noise = 0.0 if self.noise is not None else float(np.trace(in_block))
        in_before = self.fading * in_after + (in_aged * since[:, None]).T @ here
        if self.is_first:
            in_before[:] = 0.0
        return in_rate, in_noise, in_before
