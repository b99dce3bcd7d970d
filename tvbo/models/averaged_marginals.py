"""Means and variances at single rows, averaged over sets of hyperparameters, with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tvbo.kernels import TemporalKernel
from tvbo.models.closed_form import Array, ClosedForm, Pullback
from tvbo.models.correlation import Correlation
from tvbo.rounding import LEAST_VARIANCE

TINY = np.finfo(float).tiny


class AveragedMarginals:
    """Means and variances at single rows, and their gradients in closed form, in NumPy.

    They are most of the time of a search for the next action, and PyTorch's graph takes ten times
    as long for some hundred numbers.

    Args:
        correlation: Correlation of actions, by squared distance.
        weights: Weights of the sets, ``s``.
        mean: Prior means, ``s``.
        prior_variance: Variance of the function under the prior, the same for all sets.
        inverse_squares: Of the lengthscales, ``d x s``.
        temporal_kernels: Temporal kernels, whose batches have the sets in order.
        X: Rows of the observations, ``n x (d + 1)``.
        whitening: Transposed inverses of the Cholesky factors of their covariances, ``s x n x n``.
        innovations: Outcomes less their prior means, whitened, ``s x n x 1``.
    """

    def __init__(
        self,
        correlation: Correlation,
        weights: Tensor,
        mean: Tensor,
        prior_variance: Tensor,
        inverse_squares: Tensor,
        temporal_kernels: Sequence[TemporalKernel],
        X: Tensor,
        whitening: Tensor,
        innovations: Tensor,
    ):
        self.correlation = correlation
        self.temporal_kernels = temporal_kernels
        # Not copies, which would be pickled beside the model's own.
        self._tensors = (weights, mean, prior_variance, inverse_squares, X, whitening, innovations)
        self._alpha = (whitening @ innovations).mT.numpy(force=True)
        self._times: Array | None = None
        self._correlations = self._slopes = self._alpha

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances ``...`` at rows ``... x (d + 1)``, differentiable once."""
        mean, variance = ClosedForm.apply(X, self.evaluate)
        return mean, variance

    def evaluate(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return means and variances ``2 x b`` at rows ``b x d``, and what differentiates them."""
        arrays = (each.numpy(force=True) for each in self._tensors)
        weights, prior_mean, prior_variance, inverse_squares, train_X, whitening, innovations = (
            arrays
        )
        inverse_squares = inverse_squares.T
        s, n, _ = whitening.shape
        # Columns first, so that what is added up or multiplied lies side by side.
        differences = X.T[:-1, :, None] - train_X.T[:-1, None]
        squares = (inverse_squares @ np.square(differences).reshape(-1, len(X) * n)).reshape(
            s, -1, n
        )
        in_space, slope = self.correlation.evaluate(squares, with_gradients)
        in_time, by_lag = self._in_time(X[:, -1], train_X[:, -1])
        in_time = prior_variance * in_time
        V = (in_space * in_time) @ whitening
        means = (V @ innovations)[..., 0] + prior_mean[:, None]
        mean = weights @ means
        deviations = means - mean
        variances = prior_variance - np.square(V).sum(axis=-1) + np.square(deviations)
        least = max(LEAST_VARIANCE * float(prior_variance), TINY)
        variance = weights @ variances
        moments = np.array([mean, variance.clip(least)])
        if slope is None:
            return moments, None

        def pullback(by_moments: Array) -> Array:
            by_mean, by_variance = by_moments
            by_variance = weights[:, None] * np.where(variance < least, 0.0, 2 * by_variance)
            by_means = weights[:, None] * by_mean + by_variance * deviations
            by_covar = by_means[..., None] * self._alpha
            by_covar -= (by_variance[..., None] * V) @ whitening.mT
            by_squares = by_covar * (slope * in_time)
            by_differences = inverse_squares.T @ by_squares.reshape(s, -1)
            by_actions = -(by_differences.reshape(differences.shape) * differences).sum(axis=-1)
            by_time = prior_variance * (by_covar * in_space * by_lag).sum(axis=(0, 2))
            return np.concatenate([by_actions, by_time[None]]).T

        return moments, pullback

    def _in_time(self, times: Array, train_times: Array) -> tuple[Array, Array]:
        """Return correlations in time and their derivatives, ``s x b x n``, or ``s x 1 x n``.

        In a search all rows have the same time, each time that it asks.
        """
        if (times == times[0]).all():
            times = times[:1]
        if self._times is None or not np.array_equal(times, self._times):
            lags = torch.from_numpy(times[:, None] - train_times)
            sizes = [kernel.batch_shape.numel() for kernel in self.temporal_kernels]
            flat = lags.reshape(1, -1).repeat(sum(sizes), 1).requires_grad_()
            with torch.enable_grad():
                parts = zip(self.temporal_kernels, flat.abs().split(sizes), strict=True)
                correlations = torch.cat([kernel.correlation(part) for kernel, part in parts])
                (slopes,) = torch.autograd.grad(correlations.sum(), flat)
            self._correlations = correlations.detach().view(-1, *lags.shape).numpy()
            self._slopes = slopes.view(-1, *lags.shape).numpy()
            # The caller may change its tensor in place.
            self._times = times.copy()
        return self._correlations, self._slopes
