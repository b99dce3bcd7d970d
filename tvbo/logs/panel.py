"""Panels: their exact log likelihood, in time nearly linear in their length, and their rows."""

from __future__ import annotations

import math

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from gpytorch.kernels import Kernel
from scipy.linalg.lapack import dtbtrs
from torch import Tensor

from tvbo.logs.dataset import Panel
from tvbo.logs.likelihood import weighted_mean, with_gradient
from tvbo.quadratic_model import Array


class PanelLikelihood:
    r"""Log likelihood of every action at every time, by modes of the spatial covariance.

    With :math:`K = U \Lambda U^\top` over the ``n`` actions, the columns of :math:`Z = Y U` are
    independent. Mode ``i`` is a Markov process of stationary variance :math:`\lambda_i` and
    correlation :math:`e^{-\rho |\Delta t| / 2}`, observed with noise variance σ²: a scalar Kalman
    filter gives its likelihood in one pass. This costs :math:`O(n^3 + n^2 T)` instead of
    :math:`O(n^3 T^3)`, for the same value. The filters restart with each segment.

    Differentiating an eigendecomposition divides by gaps between eigenvalues, which may be zero.
    The likelihood itself is smooth in :math:`K`: its derivative is computed in the basis of the
    modes and transformed back.

    Args:
        panel: The observations.
        covar_module: The kernel over actions.
        mean: The prior mean; None takes its maximum likelihood value (generalized least squares).
    """

    def __init__(self, panel: Panel, covar_module: Kernel, mean: float | None):
        self.covar_module = covar_module
        self.mean = mean
        self.actions = panel.actions
        self.gaps = panel.gaps.numpy()
        self.values = panel.values.numpy().T
        self.ones = np.ones_like(self.values)

    def __call__(self, rate: Tensor, noise_variance: Tensor) -> tuple[Tensor, float]:
        """Return the log likelihood, differentiable, and the mean at which it was evaluated.

        Args:
            rate: ρ per unit of time, a scalar.
            noise_variance: σ², a scalar.
        """
        covar = self.covar_module(self.actions).to_dense()
        eigenvalues, modes = np.linalg.eigh(covar.detach().numpy())
        filters = ModeFilter(
            eigenvalues.clip(min=0.0), self.gaps, rate.item(), noise_variance.item()
        )
        series = modes.T @ np.stack([self.values, self.ones])
        innovations = filters.innovations(series)
        mean = self.mean
        if mean is None:
            white = innovations / np.sqrt(filters.totals)
            mean = weighted_mean(white[0], white[1])
        residual = series[0] - mean * series[1]
        error = innovations[0] - mean * innovations[1]
        value = filters.log_likelihood(error)
        if not torch.is_grad_enabled():
            return torch.tensor(value, dtype=torch.float64), mean
        in_rate, in_noise, in_modes = filters.gradient(residual, error)
        return with_gradient(
            value,
            (rate, in_rate),
            (noise_variance, in_noise),
            (covar, modes @ in_modes @ modes.T),
        ), mean


def panel_rows(values: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return a ``T x n`` panel as rows ``[arm index | time]``, ``N x 2``, and outcomes, ``N x 1``.

    Cells that are NaN were not observed and give no row.

    Args:
        values: ``T x n``.
        times: ``T``.

    Raises:
        BotorchTensorDimensionError: if there is not one time for each row of ``values``.
    """
    _check_panel(values, "times", times)
    arms = torch.arange(values.shape[1], dtype=torch.float64)
    grid_t, grid_arm = torch.meshgrid(times.to(torch.float64), arms, indexing="ij")
    observed = ~values.isnan()
    return torch.stack([grid_arm[observed], grid_t[observed]], dim=-1), values[observed][:, None]


def panel_segments(values: Tensor, segments: Tensor) -> Tensor:
    """Return the segment labels of the rows of :func:`panel_rows` from one label per time.

    Args:
        values: ``T x n``.
        segments: ``T``, such as the day of each time.

    Raises:
        BotorchTensorDimensionError: if there is not one label for each row of ``values``.
    """
    _check_panel(values, "segments", segments)
    return segments.unsqueeze(-1).expand_as(values)[~values.isnan()]


def _check_panel(values: Tensor, name: str, labels: Tensor) -> None:
    """Raise unless there is one label for each row of ``values``."""
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise BotorchTensorDimensionError(
            f"Expected values T x n and T {name}. Got values.shape={tuple(values.shape)}, "
            f"{name}.shape={tuple(labels.shape)}."
        )


class ModeFilter:
    r"""``n`` scalar processes observed with noise at ``T`` times.

    Process ``i`` has the stationary variance :math:`\lambda_i` and keeps the correlation
    :math:`a_k = e^{-\rho \Delta_k / 2}` over the gap :math:`\Delta_k`. Only the recursion of the
    variances is not linear: it is computed step by step, for all processes at once. Means and all
    gradients are linear recursions, which are bidiagonal systems.

    Args:
        eigenvalues: ``n`` stationary variances, at least 0.
        gaps: ``T - 1`` gaps between times; infinite between independent segments.
        rate: ρ.
        noise_variance: σ².
    """

    def __init__(self, eigenvalues: Array, gaps: Array, rate: float, noise_variance: float):
        self.eigenvalues = eigenvalues[:, None]
        self.noise_variance = noise_variance
        finite = np.isfinite(gaps)
        # Over an infinite gap there is no correlation, also at ρ = 0.
        self.gaps = np.where(finite, gaps, 0.0)
        self.decay = np.where(finite, np.exp(-0.5 * rate * self.gaps), 0.0)
        self.fresh = np.where(finite, -np.expm1(-rate * self.gaps), 1.0)
        self.variances = self._variances(eigenvalues)
        self.totals = self.variances + noise_variance
        self.gains = self.variances / self.totals
        self.losses = noise_variance / self.totals
        self.carry = self.decay * self.losses[:, :-1]

    def _variances(self, eigenvalues: Array) -> Array:
        """Return the variances of the predictions, ``n x T``."""
        kept = self.decay**2 * self.noise_variance
        news = np.outer(self.fresh, eigenvalues)
        variances = np.empty((len(kept) + 1, len(eigenvalues)))
        variances[0] = eigenvalues
        total = np.empty_like(eigenvalues)
        for k, (factor, new) in enumerate(zip(kept.tolist(), news, strict=True)):
            before, after = variances[k], variances[k + 1]
            np.add(before, self.noise_variance, out=total)
            np.divide(before, total, out=after)
            np.multiply(after, factor, out=after)
            np.add(after, new, out=after)
        return np.ascontiguousarray(variances.T)

    def innovations(self, series: Array) -> Array:
        """Return series ``... x n x T`` less their predictions."""
        driven = np.zeros_like(series)
        driven[..., 1:] = self.decay * self.gains[:, :-1] * series[..., :-1]
        return series - recursion(self.carry, driven)

    def log_likelihood(self, innovations: Array) -> float:
        """Return the log likelihood of a series from its innovations, ``n x T``."""
        return -0.5 * float(
            (innovations**2 / self.totals).sum()
            + np.log(self.totals).sum()
            + self.totals.size * math.log(2 * math.pi)
        )

    def gradient(self, series: Array, innovations: Array) -> tuple[float, float, Array]:
        r"""Return the gradient of :meth:`log_likelihood`, by backpropagation through the filter.

        It is that with respect to ρ, σ², and the covariance of the modes, ``n x n``. The diagonal
        of the last belongs to the eigenvalues, the rest to rotations of the modes:
        :math:`\tfrac12 \alpha_i^\top D \alpha_j`, with :math:`\alpha = \Sigma^{-1} r` by mode
        and ``D`` the correlations in time.

        Args:
            series: ``n x T``.
            innovations: Those of the series, ``n x T``.
        """
        decay, total = self.decay, self.totals
        before = self.totals[:, :-1], self.gains[:, :-1], self.losses[:, :-1]
        total_before, gain, loss = before
        error = innovations / total
        # The prediction at k affects later ones only by the next one.
        in_mean = recursion(self.carry, error, backwards=True)
        next_mean = in_mean[:, 1:]
        alpha = error.copy()
        alpha[:, :-1] -= decay * gain * next_mean
        in_gain = decay * innovations[:, :-1] * next_mean

        direct = 0.5 * (error**2 - 1 / total)
        direct[:, :-1] += in_gain * loss / total_before
        kept = decay**2
        in_variance = recursion(kept * loss**2, direct, backwards=True)
        next_variance = in_variance[:, 1:]

        noise = (
            0.5 * (error**2 - 1 / total).sum()
            - (in_gain * gain / total_before).sum()
            + (kept * gain**2 * next_variance).sum()
        )
        eigenvalues = in_variance[:, 0] + next_variance @ self.fresh
        filtered = series[:, :-1] - loss * innovations[:, :-1]
        in_log_decay = decay * (filtered * next_mean).sum(0) + 2 * kept * (
            (self.noise_variance * gain - self.eigenvalues) * next_variance
        ).sum(0)
        correlated = self._correlate(alpha)
        covar = 0.5 * alpha @ correlated.T
        np.fill_diagonal(covar, eigenvalues)
        return float(-0.5 * self.gaps @ in_log_decay), float(noise), covar

    def _correlate(self, alpha: Array) -> Array:
        """Return ``D alpha``, the correlations in time times each row."""
        decay = np.broadcast_to(self.decay, (len(alpha), len(self.decay)))
        return recursion(decay, alpha) + recursion(decay, alpha, backwards=True) - alpha


def recursion(factors: Array, driven: Array, backwards: bool = False) -> Array:
    """Solve ``x[k + 1] = factors[k] * x[k] + driven[k + 1]`` along the last axis.

    Args:
        factors: ``n x (T - 1)``.
        driven: ``... x n x T``; ``x[0]`` is ``driven[0]``.
        backwards: Solve ``x[k] = factors[k] * x[k + 1] + driven[k]`` instead.
    """
    n, steps = driven.shape[-2:]
    # All rows are concatenated to one bidiagonal system, with zeros between them.
    bands = np.zeros((2, n, steps))
    bands[0] = 1.0
    bands[1, :, :-1] = -factors
    solution, _ = dtbtrs(
        bands.reshape(2, -1),
        driven.reshape(-1, n * steps).T,
        uplo="L",
        trans="T" if backwards else "N",
        diag="U",
    )
    result: Array = solution.T.reshape(driven.shape)
    return result
