"""Means and seasons of the arms of a panel: Gaussian coefficients, integrated out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvbo.logs.panel_data import SegmentGroup, regressors
from tvbo.logs.season import Season
from tvbo.logs.state_filter import StateSpace, filter_modes
from tvbo.quadratic_model import Array


@dataclass(frozen=True)
class Posterior:
    """What the panel says of the coefficients and, after its last time, of the drifting state.

    Args:
        mean: ``n x (q + s)``, coefficients (the level first) and state of each mode.
        covariance: ``n x (q + s) x (q + s)``.
    """

    mean: Array
    covariance: Array


def prior_variances(season: Season | None, phi: Array, log_eigenvalues: Array) -> Array:
    """Return the prior variances of the coefficients of each mode, ``n x q``.

    Args:
        season: The season; None if there is none.
        phi: Logarithm of the variance of the arms' means about the common one, and, with a season,
            the logarithm of its amplitude, the power of the eigenvalues that it follows, and its
            shape, as :attr:`Season.shape`.
        log_eigenvalues: ``n``.
    """
    level = np.full((len(log_eigenvalues), 1), math.exp(phi[0]))
    if season is None:
        return level
    amplitudes = np.exp(phi[1] + phi[2] * log_eigenvalues)
    return np.hstack([level, np.outer(amplitudes, season.weights(phi[3:]))])


class CoefficientModel:
    r"""Regressions of the modes on ones and season, with errors from a state-space model.

    Mode ``i`` has the series :math:`B \beta_i + f_i + \text{noise}`, with independent
    :math:`\beta_{ij} \sim \mathcal N(m u_i [j = 0], d_{ij})`. A filter whitens the series and all
    columns of ``B``; after it, everything is linear regression of ``q`` coefficients.

    Args:
        groups: Segments, with values of the modes.
        season: The season; None if there is none.
        model: One state-space model, ``p = 1``.
        loadings: ``n``, the modes of a common mean, :math:`u = U^\top 1`.
    """

    def __init__(
        self,
        groups: Sequence[SegmentGroup],
        season: Season | None,
        model: StateSpace,
        loadings: Array,
    ):
        self.loadings = loadings
        self.constant, moments = 0.0, []
        for group in groups:
            B = regressors(season, group.times)
            T, n, c = group.values.shape
            columns = np.broadcast_to(B[:, None], (T, n, B.shape[1]))
            filtered = filter_modes(
                np.concatenate([group.values, columns], axis=-1), group.gaps, model
            )
            variances = filtered.variances[:, 0]
            white = filtered.innovations[:, 0] / np.sqrt(variances)[..., None]
            white = np.ascontiguousarray(white.transpose(1, 2, 0))
            products = white @ white.transpose(0, 2, 1)
            self.constant -= 0.5 * c * float(np.log(2 * math.pi * variances).sum())
            moments.append(
                (
                    np.trace(products[:, :c, :c], axis1=1, axis2=2),
                    products[:, c:, :c].sum(-1),
                    c * products[:, c:, c:],
                )
            )
        self.squares, self.crossed, self.gram = (sum(terms) for terms in zip(*moments, strict=True))
        # States at the end: of the series, and of each column of B.
        self.states = filtered.mean[0].transpose(1, 0, 2)
        self.state_covariance = filtered.covariance[0].transpose(2, 0, 1)

    def solve(self, variances: Array) -> tuple[float, float, Array]:
        """Return log likelihood, common mean by generalized least squares, and a factor.

        Args:
            variances: ``n x q`` prior variances of the coefficients, :math:`d`.

        Returns:
            The factor is the Cholesky factor of :math:`1 + d^{1/2} G d^{1/2}`, ``n x q x q``.
        """
        roots = np.sqrt(variances)
        inner = np.eye(roots.shape[1]) + roots[:, :, None] * self.gram * roots[:, None]
        factor = np.linalg.cholesky(inner)
        right = np.stack([roots * self.crossed, roots * self.gram[:, :, 0]], axis=-1)
        white = np.linalg.solve(factor, right)
        u = self.loadings
        yy = self.squares - (white[..., 0] ** 2).sum(1)
        y1 = u * (self.crossed[:, 0] - (white[..., 0] * white[..., 1]).sum(1))
        ones = u**2 * (self.gram[:, 0, 0] - (white[..., 1] ** 2).sum(1))
        mean = float(y1.sum() / ones.sum())
        misfit = yy.sum() - 2 * mean * y1.sum() + mean**2 * ones.sum()
        logs = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum()
        return float(self.constant - 0.5 * misfit - logs), mean, factor

    def coefficients(self, variances: Array) -> tuple[Array, Array]:
        """Return the posterior means of the coefficients, ``n x q``, and their covariances."""
        _, mean, factor = self.solve(variances)
        roots = np.sqrt(variances)
        half = np.linalg.solve(factor, roots[:, :, None] * np.eye(roots.shape[1]))
        covariance = half.transpose(0, 2, 1) @ half
        shifted = self.crossed - mean * self.loadings[:, None] * self.gram[:, :, 0]
        coefficients = np.einsum("nij,nj->ni", covariance, shifted)
        coefficients[:, 0] += mean * self.loadings
        return coefficients, covariance

    def posterior(self, variances: Array) -> Posterior:
        """Return the joint posterior of coefficients and state after the last time.

        Args:
            variances: ``n x q`` prior variances of the coefficients.
        """
        coefficients, covariance = self.coefficients(variances)
        q = coefficients.shape[1]
        count = self.states.shape[-1] - q
        # Given the coefficients the state has the mean z - W beta.
        columns = self.states[..., count:]
        mean = self.states[..., :count].sum(-1) - np.einsum("nsq,nq->ns", columns, coefficients)
        crossed = -columns @ covariance
        block = self.state_covariance + columns @ covariance @ columns.transpose(0, 2, 1)
        joint = np.block([[covariance, crossed.transpose(0, 2, 1)], [crossed, block]])
        return Posterior(np.hstack([coefficients, mean]), joint)
