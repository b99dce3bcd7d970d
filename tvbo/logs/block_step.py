"""The likelihood of a block of a log given all earlier observations, and its derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from tvbo.logs.dense import check_factored

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Successive observations of one segment.

    Args:
        arms: ``b`` indices of their actions.
        times: ``b``, not decreasing.
        series: ``s x b``, several series of outcomes.
        noise: ``b`` known noise variances, or None.
        start: Time of the posterior before the block, which is the last time of the previous
            block; for the first block of a segment its own first time.
        is_first: Whether the block is the first of its segment.
    """

    arms: NDArray[np.int64]
    times: Array
    series: Array
    noise: Array | None
    start: float
    is_first: bool


@dataclass(frozen=True)
class ActionPosterior:
    r"""The posterior of ``f`` over the ``n`` actions at one time, on which all later times depend.

    With :math:`\phi(d) = e^{-\rho d / 2}`, the function has, at times :math:`s, s'` that are later
    by :math:`d, d'`, the mean :math:`\phi(d) m` and the covariance
    :math:`\phi(|s - s'|) K - \phi(d) \phi(d') R`.

    Args:
        mean: :math:`m`, ``s x n``, one for each series.
        reduction: :math:`R`, ``n x n``, the prior covariance less the posterior one.
    """

    mean: Array
    reduction: Array

    @classmethod
    def prior(cls, series: int, n: int) -> ActionPosterior:
        """Return the posterior without observations."""
        return cls(np.zeros((series, n)), np.zeros((n, n)))


@dataclass
class BlockGradient:
    """Derivatives of a log likelihood, accumulated block by block, from the last to the first.

    Args:
        rate: With respect to ρ.
        noise_variance: With respect to σ²; zero if every block has known noise variances.
        covar: With respect to the covariance over actions, ``n x n``; only its symmetric part
            is meaningful.
        mean: With respect to the mean of the posterior before the present block, ``n``.
        reduction: With respect to the reduction of that posterior, ``n x n``, symmetric.
    """

    rate: float
    noise_variance: float
    covar: Array
    mean: Array
    reduction: Array

    @classmethod
    def zero(cls, n: int) -> BlockGradient:
        """Return the derivatives after the last block."""
        return cls(0.0, 0.0, np.zeros((n, n)), np.zeros(n), np.zeros((n, n)))


class BlockStep:
    """The outcomes of a block whitened given the posterior before it, and the posterior after it.

    Args:
        block: The observations.
        before: The posterior before the block.
        covar: ``n x n`` covariance over the actions.
        rate: ρ.
        noise_variance: σ²; not used if the noise variances of the block are known.

    Raises:
        NotPSDError: if the covariance of the block is singular to rounding.
    """

    def __init__(
        self,
        block: Block,
        before: ActionPosterior,
        covar: Array,
        rate: float,
        noise_variance: float,
    ):
        self.block, self.before, self.prior, self.rate = block, before, covar, rate
        times = block.times
        self.ages, self.age = times - block.start, times[-1] - block.start
        self.since = np.exp(-0.5 * rate * self.ages)
        self.until = np.exp(-0.5 * rate * (times[-1] - times))
        self.kept = float(np.exp(-0.5 * rate * self.age))
        correlation, _, prior, reduction = self._pairs()
        covariance = correlation
        covariance *= prior
        reduction *= self.since
        reduction *= self.since[:, None]
        covariance -= reduction
        covariance.flat[:: len(times) + 1] += noise_variance if block.noise is None else block.noise
        self.root, info = dpotrf(covariance.T, lower=1, overwrite_a=1)
        check_factored(info)
        crossed = covar[block.arms] * self.until[:, None]
        crossed -= before.reduction[block.arms] * (self.kept * self.since)[:, None]
        series = block.series - self.since * before.mean[:, block.arms]
        right = np.concatenate([series, crossed.T])
        white = dtrtrs(self.root, right.T, lower=1, overwrite_b=1)[0]
        self.white, self.crossed = white[:, : len(series)], white[:, len(series) :]

    def _pairs(self) -> tuple[Array, Array, Array, Array]:
        """Return ``b x b`` correlations in time, lags, prior covariances and reductions."""
        arms, times = self.block.arms, self.block.times
        lags = np.abs(times[:, None] - times)
        pairs = arms[:, None] * len(self.prior) + arms
        return (
            np.exp(-0.5 * self.rate * lags),
            lags,
            self.prior.take(pairs),
            self.before.reduction.take(pairs),
        )

    def log_determinant(self) -> float:
        """Return the log determinant of the covariance of the block given the earlier ones."""
        return 2 * float(np.log(self.root.diagonal()).sum())

    def after(self) -> ActionPosterior:
        """Return the posterior at the last time of the block."""
        return ActionPosterior(
            mean=self.kept * self.before.mean + self.white.T @ self.crossed,
            reduction=self.kept**2 * self.before.reduction + self.crossed.T @ self.crossed,
        )

    def add_gradient(self, total: BlockGradient, weights: Array) -> None:
        """Add the derivatives of the block, by backpropagation through it.

        Args:
            total: Derivatives of the later blocks, to which those of this one are added. Those with
                respect to the posterior after the block are replaced by those with respect to the
                posterior before it.
            weights: ``s``; the log likelihood is that of the sum of the series times these.
        """
        block, before, ages = self.block, self.before, self.ages
        arms, n = block.arms, len(self.prior)
        # The columns S^-1 C' and alpha = S^-1 r, of which all derivatives are composed.
        solved = dtrtrs(
            self.root,
            np.column_stack([self.crossed, self.white @ weights]),
            lower=1,
            trans=1,
        )[0]
        gains, alpha = solved[:, :n], solved[:, n]
        inner = np.empty((n + 1, n + 1))
        inner[:n, :n] = -total.reduction
        inner[n, :n] = inner[:n, n] = -0.5 * total.mean
        inner[n, n] = 0.5
        in_covar = solved @ inner @ solved.T
        # Only the lower triangle is valid, which suffices because only symmetric sums follow.
        inverse, _ = dpotri(self.root, lower=1)
        in_covar -= inverse
        in_covar.flat[:: len(arms) + 1] += 0.5 * inverse.diagonal()
        in_series = gains @ total.mean - alpha
        in_crossed = np.outer(alpha, total.mean) + 2 * gains @ total.reduction

        correlation, lags, prior, reduction = self._pairs()
        pairs = (arms[:, None] * n + arms).ravel()
        in_prior = in_covar * correlation
        total.covar += np.bincount(pairs, in_prior.ravel(), n * n).reshape(n, n)
        in_prior *= prior
        in_prior *= lags
        reduction *= in_covar
        mean, aged = weights @ before.mean, ages * self.since
        seen = self.until[:, None] * in_crossed
        folded = (self.kept * self.since)[:, None] * in_crossed
        reduced = before.reduction[arms]
        folded_by_row = (folded * reduced).sum(1)
        if block.noise is None:
            total.noise_variance += float(in_covar.diagonal().sum())
        total.rate += 0.5 * float(
            -in_prior.sum()
            + aged @ (reduction @ self.since)
            + self.since @ (reduction @ aged)
            + (aged * in_series) @ mean[arms]
            - (block.times[-1] - block.times) @ (seen * self.prior[arms]).sum(1)
            + (self.age + ages) @ folded_by_row
            - self.age * self.kept * (total.mean @ mean)
            - 2 * self.age * self.kept**2 * (total.reduction * before.reduction).sum()
        )
        here = np.zeros((len(arms), n))
        here[np.arange(len(arms)), arms] = 1.0
        total.covar += here.T @ seen
        in_covar *= self.since
        in_covar *= self.since[:, None]
        in_reduction = np.bincount(pairs, in_covar.ravel(), n * n).reshape(n, n)
        in_reduction += here.T @ folded
        total.mean = self.kept * total.mean - np.bincount(arms, self.since * in_series, n)
        total.reduction = self.kept**2 * total.reduction - 0.5 * (in_reduction + in_reduction.T)
        if block.is_first:
            total.mean[:] = 0.0
            total.reduction[:] = 0.0
