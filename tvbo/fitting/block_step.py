"""One block of a log, conditioned on all that came before it, and the derivative of that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dtrtrs

from tvbo.fitting.linear_algebra import check_factored

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Successive observations of one segment.

    Args:
        arms: ``b`` numbers of their actions.
        times: ``b``, not decreasing.
        series: ``s x b`` outcomes.
        noise: ``b`` known noise variances, or None.
        start: Time of the base before the block; the first block of a segment has none, and its
            own first time here.
        is_first: Whether it is the first of its segment.
    """

    arms: NDArray[np.int64]
    times: Array
    series: Array
    noise: Array | None
    start: float
    is_first: bool


@dataclass(frozen=True)
class Carried:
    r"""The posterior of ``f`` over the ``n`` actions at one time, all that a later time needs.

    For times :math:`s, s'` after it, with :math:`\phi(d) = e^{-\rho d / 2}` and ages
    :math:`d, d'` since the base, the prior given the base has the mean :math:`\phi(d) m` and the
    covariance :math:`\phi(|s - s'|) K - \phi(d) \phi(d') R`.

    Args:
        mean: ``s x n``, one for each series.
        reduction: ``n x n``, the prior covariance less the posterior.
    """

    mean: Array
    reduction: Array

    @classmethod
    def prior(cls, series: int, n: int) -> Carried:
        """Nothing seen."""
        return cls(np.zeros((series, n)), np.zeros((n, n)))


@dataclass
class BlockGradient:
    """Derivatives of a log likelihood, gathered block by block, last block first.

    Args:
        rate: In ρ.
        noise_variance: In σ²; zero where every block knows its noise.
        covar: ``n x n``, in the covariance over actions; its symmetric part counts.
        mean: ``n``, in the mean of the base before the block just done.
        reduction: ``n x n``, in the reduction of that base; symmetric.
    """

    rate: float
    noise_variance: float
    covar: Array
    mean: Array
    reduction: Array

    @classmethod
    def zero(cls, n: int) -> BlockGradient:
        """After the last block."""
        return cls(0.0, 0.0, np.zeros((n, n)), np.zeros(n), np.zeros((n, n)))


class BlockStep:
    """The block given a base: its whitened outcomes, and the base at its end.

    Args:
        block: The observations.
        base: The base before it.
        covar: ``n x n`` covariance over the actions.
        rate: ρ.
        noise_variance: σ²; not used where the block knows its noise.

    Raises:
        NotPSDError: if the covariance of the block is singular to rounding.
    """

    def __init__(
        self, block: Block, base: Carried, covar: Array, rate: float, noise_variance: float
    ):
        self.block, self.base, self.prior, self.rate = block, base, covar, rate
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
        crossed -= base.reduction[block.arms] * (self.kept * self.since)[:, None]
        series = block.series - self.since * base.mean[:, block.arms]
        right = np.concatenate([series, crossed.T])
        white = dtrtrs(self.root, right.T, lower=1, overwrite_b=1)[0]
        self.white, self.crossed = white[:, : len(series)], white[:, len(series) :]

    def _pairs(self) -> tuple[Array, Array, Array, Array]:
        """``b x b`` correlations in time, lags, prior covariances, reductions of the base."""
        arms, times = self.block.arms, self.block.times
        lags = np.abs(times[:, None] - times)
        places = arms[:, None] * len(self.prior) + arms
        return (
            np.exp(-0.5 * self.rate * lags),
            lags,
            self.prior.take(places),
            self.base.reduction.take(places),
        )

    def log_determinant(self) -> float:
        """Of the covariance of the block given the base."""
        return 2 * float(np.log(self.root.diagonal()).sum())

    def after(self) -> Carried:
        """The base at the block's end: its last time."""
        return Carried(
            mean=self.kept * self.base.mean + self.white.T @ self.crossed,
            reduction=self.kept**2 * self.base.reduction + self.crossed.T @ self.crossed,
        )

    def add_gradient(self, total: BlockGradient, weights: Array) -> None:
        """Run backwards: from derivatives in the base after the block to those in the one before.

        Args:
            total: Derivatives of what comes after; those of this block are added.
            weights: ``s``; the log likelihood is of the series times these, added up.
        """
        block, base, ages = self.block, self.base, self.ages
        arms, n = block.arms, len(self.prior)
        # Columns S^-1 C' and alpha = S^-1 r: all that follows is made of them.
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
        # Its lower triangle stands for both: from here on only symmetric sums are taken.
        inverse, _ = dpotri(self.root, lower=1)
        in_covar -= inverse
        in_covar.flat[:: len(arms) + 1] += 0.5 * inverse.diagonal()
        in_series = gains @ total.mean - alpha
        in_crossed = np.outer(alpha, total.mean) + 2 * gains @ total.reduction

        correlation, lags, prior, reduction = self._pairs()
        places = (arms[:, None] * n + arms).ravel()
        in_prior = in_covar * correlation
        total.covar += np.bincount(places, in_prior.ravel(), n * n).reshape(n, n)
        in_prior *= prior
        in_prior *= lags
        reduction *= in_covar
        mean, aged = weights @ base.mean, ages * self.since
        seen = self.until[:, None] * in_crossed
        folded = (self.kept * self.since)[:, None] * in_crossed
        reduced = base.reduction[arms]
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
            - 2 * self.age * self.kept**2 * (total.reduction * base.reduction).sum()
        )
        here = np.zeros((len(arms), n))
        here[np.arange(len(arms)), arms] = 1.0
        total.covar += here.T @ seen
        in_covar *= self.since
        in_covar *= self.since[:, None]
        before = np.bincount(places, in_covar.ravel(), n * n).reshape(n, n)
        before += here.T @ folded
        total.mean = self.kept * total.mean - np.bincount(arms, self.since * in_series, n)
        total.reduction = self.kept**2 * total.reduction - 0.5 * (before + before.T)
        if block.is_first:
            total.mean[:] = 0.0
            total.reduction[:] = 0.0
