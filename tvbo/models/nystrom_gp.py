"""The posterior of a GP whose data are projected on a few inducing points, as BKB needs it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Tensor

from tvbo.models.incremental import RowPosterior, Whitened
from tvbo.models.resizable_module import ResizableModule
from tvbo.spaces.observations import check_finite

FITTED = ("_whitening", "_weights")
OBSERVED = ("_X", "_residual", "_observed_noise", "_observed_variance", "_observed_prior_variance")

ROUNDING = 1e-14
"""Share of the largest eigenvalue up to which others are rounding errors on any CPU. It is also
added to those above it: where two inducing points nearly coincide, an eigenvalue too small by its
rounding error would make the posterior variance too small."""


class NystromGP(ResizableModule, RowPosterior):
    r"""A GP whose data enter by ``m`` inducing points (Calandriello et al., 2019, Section 3).

    With :math:`z(x) = K_S^{+1/2} k_S(x)` the embedding of a row by the inducing points ``S``,
    :math:`Z` the embedding of the observed rows, :math:`\lambda = \sigma^2` and
    :math:`V = Z^\top Z + \lambda I`,

    .. math:: \mu(x) = m(x) + z(x)^\top V^{-1} Z^\top (y - m(X)), \quad
        \mathrm{Cov}(x, x') = k(x, x') - z(x)^\top Z^\top Z\, V^{-1} z(x').

    The paper writes :math:`\tilde\sigma^2(x)` for :math:`\mathrm{Cov}(x, x) / \lambda`. Unlike in
    a subset of regressors, it contains the whole :math:`k(x, x)`: far from ``S`` the variance is
    that of the prior, not zero. With all observed rows in ``S`` it is the exact posterior; without
    data, or without inducing points, the prior.

    Observations with their own noise variance have the weight :math:`\lambda / \sigma_i^2` in
    ``V`` and in :math:`Z^\top y`.

    The pseudo-inverse omits eigenvalues of :math:`K_S` within rounding of zero, so that the
    inducing points may contain duplicates. Its rounding error is about 1e-8 of the prior scale
    where :math:`K_S` has condition 1e8, and 1e-5 at 1e16. ``n`` observations cost
    :math:`O(n m^2 + m^3)` once, and the prediction of ``N`` rows :math:`O(N m^2)`.

    :meth:`condition_on_observations` and :meth:`fantasize` condition this posterior on further
    outcomes exactly, not by the inducing points.

    Args:
        covar_module: Kernel over whole rows; a copy with its present parameters is used.
        noise_variance: σ², in squared units of the outcome, for outcomes without their own.
        inducing_points: Rows ``S``, ``m x d``, observed or not.
        X: Observed rows, ``n x d``.
        Y: Outcomes, ``n x 1``.
        Yvar: Their noise variances, ``n x 1``; None for ``noise_variance``.
        mean_module: Prior mean over rows, copied as well; None is zero.

    Raises:
        ValueError: if ``noise_variance`` is out of range, or the kernel has a batch shape.
        BotorchTensorDimensionError: if shapes do not agree.
        InputDataError: if a value is not finite, or a noise variance is not above zero.
    """

    optional_buffers = FITTED

    _S: Tensor
    _whitening: Tensor | None
    _weights: Tensor | None
    _X: Tensor
    _residual: Tensor
    _observed_noise: Tensor
    _observed_variance: Tensor
    _observed_prior_variance: Tensor

    def __init__(
        self,
        covar_module: Kernel,
        noise_variance: Tensor | float,
        inducing_points: Tensor,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        mean_module: Mean | None = None,
    ):
        super().__init__()
        self._set_hyperparameters(covar_module, noise_variance, mean_module)
        for name in ("_S", *FITTED, *OBSERVED):
            self.register_buffer(name, None)
        self._set_data(inducing_points, X, Y, Yvar)

    def with_data(
        self, inducing_points: Tensor, X: Tensor, Y: Tensor, Yvar: Tensor | None = None
    ) -> NystromGP:
        """Return a model with other inducing points and data, which shares kernel and mean.

        Args:
            inducing_points: Rows ``S``, ``m x d``, observed or not.
            X: Observed rows, ``n x d``.
            Y: Outcomes, ``n x 1``.
            Yvar: Their noise variances, ``n x 1``; None for ``noise_variance``.
        """
        new = copy(self)
        new._buffers = dict(self._buffers)
        new._set_data(inducing_points, X, Y, Yvar)
        return new

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return 0 if self._S is None else self._S.shape[-1]

    @property
    def inducing_points(self) -> Tensor:
        """The inducing points ``S``, ``m x d``."""
        return self._S

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations, ``n x d``."""
        return (self._X,)

    @property
    def train_targets(self) -> Tensor:
        """Outcomes, ``n``."""
        return self._residual + self._prior_mean(self._X)

    @property
    def num_observations(self) -> int:
        """Number of observations, ``n``."""
        return len(self._observed_noise)

    @property
    def observed_noise(self) -> Tensor:
        """Noise variance of each observation, ``n``."""
        return self._observed_noise

    @property
    def observed_variance(self) -> Tensor:
        """Posterior variance at each observed row, ``n``, in squared units of the outcome."""
        return self._observed_variance

    @property
    def observed_prior_variance(self) -> Tensor:
        """Prior variance at each observed row, ``n``, in squared units of the outcome."""
        return self._observed_prior_variance

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        errors: list[str] = args[-1]
        saved = state_dict.get(prefix + "_S")
        if saved is not None and saved.shape[-1] != self.width:
            errors.append(f"Expected rows of width {self.width}. Got {saved.shape[-1]}.")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _set_data(self, inducing_points: Tensor, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
        """Check the data and compute the posterior."""
        for name, value in (("inducing_points", inducing_points), ("X", X), ("Y", Y)):
            if value.ndim != 2:
                raise BotorchTensorDimensionError(
                    f"Expected {name} with two dimensions. Got {name}.shape={tuple(value.shape)}."
                )
        check_finite("inducing_points", inducing_points)
        self._S = inducing_points.to(torch.float64).clone()
        X = self._checked(X)
        with torch.no_grad():
            residual, noise = self._residuals(X, Y, Yvar, "Yvar")
            if len(X) > 0 and noise.min() <= 0:
                raise InputDataError(
                    f"Expected noise variances > 0. Got {noise.min().item()}: without noise an "
                    "outcome off the span of the inducing points has no posterior."
                )
            self._X, self._residual, self._observed_noise = X.clone(), residual, noise.clone()
            self._fit(X, residual)

    def _fit(self, X: Tensor, residual: Tensor) -> None:
        """Compute the weights of the mean and the root of the explained covariance."""
        # Not every kernel takes an input without rows.
        prior = to_dense(self.covar_module(X, diag=True)) if len(X) > 0 else X.new_empty(0)
        self._observed_prior_variance = self._observed_variance = prior
        self._whitening = self._weights = None
        if len(self._S) == 0 or len(X) == 0:
            return
        covar = to_dense(self.covar_module(X, self._S))
        embedding = _root_of_pseudo_inverse(to_dense(self.covar_module(self._S)))
        Z = covar @ embedding
        weighted = (Z / self._observed_noise.unsqueeze(-1)).mT
        # I + Z' Z / σ² = U (I + D) U' gives both V⁻¹ and the root of the explained covariance.
        D, U = torch.linalg.eigh(weighted @ Z)
        D = D.clamp_min(0.0)
        basis = embedding @ U
        self._weights = basis @ ((U.mT @ (weighted @ residual)) / (1 + D))
        self._whitening = basis * (D / (1 + D)).sqrt()
        explained = (covar @ self._whitening).square().sum(dim=-1)
        self._observed_variance = (prior - explained).clamp_min(0.0)

    def _whiten(self, X: Tensor) -> Whitened:
        shape = X.shape[:-1]
        if self._weights is None or self._whitening is None:
            zero = X.new_zeros(shape)
            return Whitened((X.new_zeros(*shape, 0),), zero, zero)
        covar = to_dense(self.covar_module(X.reshape(-1, X.shape[-1]), self._S))
        V = covar @ self._whitening
        return Whitened(
            (V.reshape(*shape, V.shape[-1]),),
            (covar @ self._weights).reshape(shape),
            V.square().sum(dim=-1).reshape(shape),
        )


def _root_of_pseudo_inverse(covar: Tensor) -> Tensor:
    """Return ``E``, ``m x r``, with ``E E'`` the pseudo-inverse of a covariance of rank ``r``."""
    values, vectors = torch.linalg.eigh(covar)
    rounding = ROUNDING * values[-1]
    kept = values > rounding
    root: Tensor = vectors[:, kept] / (values[kept] + rounding).sqrt()
    return root
