"""The posterior of a GP whose data are projected on a few inducing points, as BKB needs it."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Size, Tensor

ROUNDING = 1e-14
"""Share of the largest eigenvalue up to which others are rounding errors. It is also added to those
above it: where two inducing points nearly coincide, an eigenvalue too small by its rounding error
would make the posterior variance too small."""


class NystromGP(Model):
    r"""A GP whose data enter by ``m`` inducing points (Calandriello et al., 2019, Section 3).

    With :math:`z(x) = K_S^{+1/2} k_S(x)` the embedding of a row by the inducing points ``S``,
    :math:`Z` the embedding of the observed rows, :math:`\lambda = \sigma^2` and
    :math:`V = Z^\top Z + \lambda I`,

    .. math:: \mu(x) = z(x)^\top V^{-1} Z^\top y, \quad
        \mathrm{Cov}(x, x') = k(x, x') - z(x)^\top Z^\top Z\, V^{-1} z(x').

    The paper writes :math:`\tilde\sigma^2(x)` for :math:`\mathrm{Cov}(x, x) / \lambda`. Unlike in
    a subset of regressors, it contains the whole :math:`k(x, x)`: far from ``S`` the variance is
    that of the prior, not zero. With all observed rows in ``S`` it is the exact posterior; without
    data, or without inducing points, the prior. ``n`` observations cost :math:`O(n m^2 + m^3)`
    once, and the prediction of ``N`` rows :math:`O(N m^2)`.

    Args:
        covar_module: Kernel over whole rows.
        noise_variance: σ² > 0, in squared units of the outcome.
        inducing_points: Rows ``S``, ``m x d``, observed or not; repeats are allowed.
        X: Observed rows, ``n x d``.
        Y: Outcomes, ``n x 1``.

    Attributes:
        observed_variance: Posterior variance at each observed row, ``n``.
    """

    num_outputs = 1
    batch_shape = Size()

    @torch.no_grad()
    def __init__(
        self,
        covar_module: Kernel,
        noise_variance: float,
        inducing_points: Tensor,
        X: Tensor,
        Y: Tensor,
    ):
        super().__init__()
        self.covar_module = covar_module
        self.noise_variance = noise_variance
        self.inducing_points = inducing_points
        # Weights of the posterior mean, and the root of the covariance that is explained.
        self._weights = X.new_zeros(len(inducing_points))
        self._whitening = X.new_zeros(len(inducing_points), 0)
        if len(X) == 0:
            self.observed_variance = X.new_empty(0)
            return
        self.observed_variance = to_dense(covar_module(X, diag=True))
        if len(inducing_points) == 0:
            return
        covar = to_dense(covar_module(X, inducing_points))
        embedding = _root_of_pseudo_inverse(to_dense(covar_module(inducing_points)))
        Z = covar @ embedding
        weighted = (Z / noise_variance).mT
        # I + Z' Z / σ² = U (I + D) U' gives both V⁻¹ and the root of the explained covariance.
        D, U = torch.linalg.eigh(weighted @ Z)
        D = D.clamp_min(0.0)
        basis = embedding @ U
        self._weights = basis @ ((U.mT @ (weighted @ Y.squeeze(-1))) / (1 + D))
        self._whitening = basis * (D / (1 + D)).sqrt()
        explained = (covar @ self._whitening).square().sum(dim=-1)
        self.observed_variance = (self.observed_variance - explained).clamp_min(0.0)

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> GPyTorchPosterior:
        """Return the joint posterior of the function at rows ``... x q x d``.

        Columns after those of the inducing points, such as the time, play no part.
        """
        X = X[..., : self.inducing_points.shape[-1]]
        covar = to_dense(self.covar_module(X))
        mean = X.new_zeros(X.shape[:-1])
        if len(self.inducing_points):
            flat = to_dense(self.covar_module(X.reshape(-1, X.shape[-1]), self.inducing_points))
            mean = (flat @ self._weights).reshape(X.shape[:-1])
            root = (flat @ self._whitening).reshape(*X.shape[:-1], -1)
            covar = covar - root @ root.mT
        return GPyTorchPosterior(MultivariateNormal(mean, covar))


def _root_of_pseudo_inverse(covar: Tensor) -> Tensor:
    """Return ``E``, ``m x r``, with ``E E'`` the pseudo-inverse of a covariance of rank ``r``."""
    values, vectors = torch.linalg.eigh(covar)
    rounding = ROUNDING * values[-1]
    kept = values > rounding
    root: Tensor = vectors[:, kept] / (values[kept] + rounding).sqrt()
    return root
