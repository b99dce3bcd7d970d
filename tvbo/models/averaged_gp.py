"""The posterior averaged over several sets of hyperparameters, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import pad

from tvbo.kernels import TemporalKernel
from tvbo.kernels.batch import ColumnKernel
from tvbo.models.closed_form import Array, ClosedForm, Pullback, correlation_of
from tvbo.models.ensemble_gp import CrossCovarianceFactor, EnsembleGP
from tvbo.models.incremental_gp import IncrementalGP
from tvbo.models.raw import RawRowKernel
from tvbo.models.scale import outcome_scale
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.rounding import LEAST_VARIANCE


@dataclass(frozen=True, eq=False)
class HyperparameterSets:
    """``s`` sets of hyperparameters of a model with one form of drift, in the model's units.

    Args:
        lengthscales: Of its kernel over the columns other than time, ``s x d``.
        temporal_kernel: Its temporal kernel, with ``batch_shape`` ``s``.
        mean: Prior mean, ``s``.
        noise: Variance of the noise, ``s``; None where it is known for each observation.
        log_weights: Logarithms of what each counts, up to a constant, ``s``.
    """

    lengthscales: Tensor
    temporal_kernel: TemporalKernel
    mean: Tensor
    noise: Tensor | None
    log_weights: Tensor

    def part(self, which: Tensor) -> HyperparameterSets:
        """Return some of the sets.

        Args:
            which: A mask of the sets, ``s``.
        """
        parts: dict[str, Any] = {
            name: None if value is None else value[which] for name, value in vars(self).items()
        }
        return HyperparameterSets(**parts)


DATA = ("_X", "_Y", "_noise", "_whitening", "_innovations")


class AveragedGP(EnsembleGP):
    r"""Gaussian processes with several sets of hyperparameters, as one with the same moments.

    With weights :math:`w_s`, and :math:`\mu_s` and :math:`\Sigma_s` the posterior by the s-th set,

    .. math:: \mu = \sum_s w_s \mu_s, \quad
        \Sigma = \sum_s w_s \big(\Sigma_s + (\mu_s - \mu)(\mu_s - \mu)^\top\big)

    are those of their mixture, which :class:`botorch.posteriors.GaussianMixturePosterior` has for
    equal weights. The posterior here is a Gaussian with these moments, so that any acquisition
    takes it. All sets are evaluated together, without GPyTorch's kernels, whose overhead is most of
    the time of a search for up to some hundred observations. The posterior of single rows can be
    differentiated once, since its gradient is in closed form.

    Args:
        model: The model with the most probable hyperparameters: an RBF kernel, or Matérn-5/2,
            without a scale, over the columns other than time, which come first, times a temporal
            kernel.
        train_X: Rows ``[action | time]``, ``n x (d + 1)``.
        train_Y: Outcomes, ``n x 1``.
        sets: The sets, for each form of drift.

    Raises:
        UnsupportedError: if the model has another kernel over actions.

    Attributes:
        weights: Weights of all sets, ``s``, which sum to one.
        prior_variance: Variance of the function under the prior, the same for all sets.
        inverse_lengthscales: Inverses of the lengthscales in raw units, ``s x d``.
    """

    prior_variance: Tensor
    inverse_lengthscales: Tensor
    _mean: Tensor
    _Y: Tensor
    _noise: Tensor
    _whitening: Tensor
    _innovations: Tensor
    # Of the rows that were evaluated last: times, correlations in time, derivatives of these.
    _times: Array | None
    _correlations: Array
    _slopes: Array

    def __init__(
        self,
        model: TimeVaryingGP,
        train_X: Tensor,
        train_Y: Tensor,
        sets: Sequence[HyperparameterSets],
    ):
        super().__init__()
        # Not registered, since what is done to this model must not be done to that one.
        self._source = (RawRowKernel(model),)
        self.temporal_kernels = ModuleList(each.temporal_kernel for each in sets)
        self._correlation = correlation_of(model.covar_module.kernels[0].base_kernel)
        shift, scale = outcome_scale(model)
        # One unit of each raw column in units of the model, whose transform is linear.
        zero_and_one = train_X.new_zeros(2, train_X.shape[-1])
        zero_and_one[1] = 1
        units = model.transform_inputs(zero_and_one).diff(dim=0)
        lengthscales = torch.cat([each.lengthscales for each in sets]) / units[:, :-1]
        log_weights = torch.cat([each.log_weights for each in sets])
        self.register_buffer("weights", log_weights.softmax(dim=0))
        self.register_buffer("inverse_lengthscales", lengthscales.reciprocal())
        self.register_buffer("prior_variance", torch.tensor(scale**2, dtype=torch.float64))
        self.register_buffer("_mean", shift + scale * torch.cat([each.mean for each in sets]))
        noises = [each.noise for each in sets if each.noise is not None]
        if isinstance(model.likelihood, FixedNoiseGaussianLikelihood) or not noises:
            # Also where it was learned before outcomes came with their own.
            noise = model.likelihood.noise.detach()
        else:
            noise = torch.cat(noises).unsqueeze(-1)
        noise = (scale**2 * noise).expand(len(log_weights), len(train_X))
        self.register_buffer("_noise_variance", self.weights @ noise.mean(dim=-1))
        s, none = len(log_weights), noise[:, :0]
        self._set_data(train_X[:0], none[0], none, none.view(s, 0, 0), none.unsqueeze(-1))
        self._condition(train_X, train_Y.squeeze(-1), noise)

    @property
    def covar_module(self) -> RawRowKernel:
        """The kernel with the most probable hyperparameters, in raw units."""
        return self._source[0]

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations, ``n x (d + 1)``."""
        return (self._X,)

    @property
    def train_targets(self) -> Tensor:
        """Outcomes, ``n``."""
        return self._Y

    def moments(self, X: Array, with_gradients: bool) -> tuple[Array, Pullback | None]:
        """Return means and variances of single rows in NumPy.

        They are most of the time of a search for the next action, and PyTorch's graph takes ten
        times as long for some hundred numbers.

        Args:
            X: Rows, ``b x (d + 1)``.
            with_gradients: Whether to return what differentiates them.

        Returns:
            Means and variances, ``2 x b``, and what takes derivatives by these to derivatives by
            the rows, ``b x (d + 1)``, or None.
        """
        held = self.weights, self._mean, self.prior_variance, self._whitening, self._innovations
        weights, prior_mean, prior_variance, whitening, innovations = (
            each.numpy(force=True) for each in held
        )
        train_X = self._X.numpy(force=True)
        inverse_squares = self.inverse_lengthscales.square().numpy(force=True)
        s, n, _ = whitening.shape
        # Columns first, so that what is added up or multiplied lies side by side.
        differences = X.T[:-1, :, None] - train_X.T[:-1, None]
        squares = (inverse_squares @ np.square(differences).reshape(-1, len(X) * n)).reshape(
            s, -1, n
        )
        in_space, slope = self._correlation.evaluate(squares, with_gradients)
        in_time, by_lag = self._in_time(X[:, -1])
        in_time = prior_variance * in_time
        V = (in_space * in_time) @ whitening
        means = (V @ innovations)[..., 0] + prior_mean[:, None]
        mean = weights @ means
        deviations = means - mean
        variances = prior_variance - np.square(V).sum(axis=-1) + np.square(deviations)
        variance = weights @ variances
        moments = np.array([mean, variance.clip(LEAST_VARIANCE)])
        if slope is None:
            return moments, None

        def pullback(by_moments: Array) -> Array:
            by_mean, by_variance = by_moments
            by_variance = weights[:, None] * np.where(
                variance < LEAST_VARIANCE, 0.0, 2 * by_variance
            )
            by_means = weights[:, None] * by_mean + by_variance * deviations
            by_covar = by_means[..., None] * self._alpha
            by_covar -= (by_variance[..., None] * V) @ whitening.mT
            by_squares = by_covar * (slope * in_time)
            by_differences = inverse_squares.T @ by_squares.reshape(s, -1)
            by_actions = -(by_differences.reshape(differences.shape) * differences).sum(axis=-1)
            by_time = prior_variance * (by_covar * in_space * by_lag).sum(axis=(0, 2))
            return np.concatenate([by_actions, by_time[None]]).T

        return moments, pullback

    def _in_time(self, times: Array) -> tuple[Array, Array]:
        """Return correlations in time and their derivatives, ``s x b x n``, or ``s x 1 x n``.

        In a search all rows have the same time, each time that it asks.
        """
        if (times == times[0]).all():
            times = times[:1]
        if self._times is None or not np.array_equal(times, self._times):
            lags = torch.from_numpy(times[:, None]).to(self._X) - self._X[:, -1]
            kernels = cast(list[TemporalKernel], self.temporal_kernels)
            sizes = [kernel.batch_shape.numel() for kernel in kernels]
            flat = lags.reshape(1, -1).repeat(sum(sizes), 1).requires_grad_()
            with torch.enable_grad():
                parts = zip(kernels, flat.abs().split(sizes), strict=True)
                correlations = torch.cat([kernel.correlation(part) for kernel, part in parts])
                (slopes,) = torch.autograd.grad(correlations.sum(), flat)
            self._correlations = correlations.view(-1, *lags.shape).numpy(force=True)
            self._slopes = slopes.view(-1, *lags.shape).numpy(force=True)
            # The caller may change its tensor in place.
            self._times = times.copy()
        return self._correlations, self._slopes

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q``."""
        if X.shape[-2] != 1:
            return super()._joint(X)
        mean, variance = ClosedForm.apply(X, self.moments)
        return mean, variance.unsqueeze(-1)

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> EnsembleGP:
        """Return a model with additional observations and the same weights.

        Each set takes the outcomes as they are: one at the average mean moves that a little.

        Args:
            X: Rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast; together they are
                the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for that of each set.

        Raises:
            InputDataError: if a value is not finite, or a noise variance negative.
            BotorchTensorDimensionError: if the shape does not fit.
        """
        if X.ndim != 2 or Y.ndim != 2 or X.requires_grad or Y.requires_grad:
            return super().condition_on_observations(X, Y, noise)
        X = self._checked(X)
        Y, noise = self._outcomes(X, Y, noise)
        new = copy(self)
        new._buffers = dict(self._buffers)
        new._condition(X, Y, noise.expand(len(self._noise), len(X)))
        return new

    def member(self, i: int) -> IncrementalGP:
        """Return the posterior by the i-th set of hyperparameters alone."""
        action_columns = list(range(self.width - 1))
        form = self._in_space
        order = {"nu": form.nu} if isinstance(form, MaternKernel) else {}
        in_space = type(form)(
            ard_num_dims=len(action_columns), active_dims=action_columns, **order
        ).double()
        in_space.lengthscale = self.inverse_lengthscales[i].reciprocal()
        in_time: Kernel = [
            kernel[j]
            for kernel in cast(list[TemporalKernel], self.temporal_kernels)
            for j in range(kernel.batch_shape.numel())
        ][i]
        scaled = ScaleKernel(in_space * ColumnKernel(in_time, [self.width - 1]))
        scaled = scaled.double()
        scaled.outputscale = self.prior_variance
        mean = ConstantMean().double()
        mean.constant = self._mean[i].item()
        noise = self._noise[i].unsqueeze(-1)
        member = IncrementalGP(scaled, noise.mean().item(), mean_module=mean)
        member.observe(self._X, self._Y.unsqueeze(-1), noise)
        return member

    def one_step_ahead(self) -> tuple[Tensor, Tensor]:
        """Return what is predicted of each outcome by those before it.

        Returns:
            Means and variances of the mixture, noise included, ``n``, before ``outcome_transform``
            is undone.
        """
        deviations = self._whitening.diagonal(dim1=-2, dim2=-1).reciprocal()
        means = self._Y - deviations * self._innovations.squeeze(-1)
        mean = self._average(means)
        return mean, self._average(deviations.square() + (means - mean).square())

    @property
    def _set_noise(self) -> Tensor:
        return self._noise.mean(dim=-1)

    def _factor(self, X: Tensor) -> CrossCovarianceFactor:
        # One product for each set, whatever the batch of X.
        V = self._covar(X, self._X)
        V = (V.flatten(1, -2) @ self._whitening).view(V.shape)
        mean = (V.flatten(1, -2) @ self._innovations).view(V.shape[:-1]).movedim(0, -2)
        V = V.movedim(0, -3)
        return CrossCovarianceFactor(
            (V,), mean, V.square().sum(dim=-1), self.prior_variance.expand_as(mean)
        )

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self._covar(X1, X2).movedim(0, -3)

    def _prior_mean(self, X: Tensor) -> Tensor:
        return self._mean.unsqueeze(-1).expand(*X.shape[:-2], -1, X.shape[-2])

    def _condition(self, X: Tensor, Y: Tensor, noise: Tensor) -> None:
        """Take in further observations: rows, outcomes ``q`` and noise variances ``s x q``."""
        with torch.no_grad():
            # Blocks of the inverse Cholesky factors, of which the first is that of the earlier.
            V = self._covar(X, self._X) @ self._whitening
            root = torch.linalg.cholesky(self._covar(X, X) + torch.diag_embed(noise) - V @ V.mT)
            eye = torch.eye(len(X)).to(root).expand_as(root)
            inverse_root = torch.linalg.solve_triangular(root, eye, upper=False)
            residuals = (Y - self._mean.unsqueeze(-1)).unsqueeze(-1) - V @ self._innovations
            columns = torch.cat([-self._whitening @ V.mT, eye], dim=-2) @ inverse_root.mT
            self._set_data(
                torch.cat([self._X, X]),
                torch.cat([self._Y, Y]),
                torch.cat([self._noise, noise], dim=-1),
                torch.cat([pad(self._whitening, (0, 0, 0, len(X))), columns], dim=-1),
                torch.cat([self._innovations, inverse_root @ residuals], dim=-2),
            )

    def _set_data(
        self, X: Tensor, Y: Tensor, noise: Tensor, whitening: Tensor, innovations: Tensor
    ) -> None:
        for name, value in zip(DATA, (X, Y, noise, whitening, innovations), strict=True):
            self.register_buffer(name, value, persistent=False)
        self._alpha = (whitening @ innovations).mT.numpy(force=True)
        self._times = None

    def get_extra_state(self) -> dict[str, Any]:
        """Return the observations, and which kernel over actions the model has."""
        data = [getattr(self, name).clone() for name in DATA]
        return {"kernel": type(self._in_space).__name__, "data": data}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Load the observations.

        Args:
            state: As :meth:`get_extra_state` returns it.

        Raises:
            RuntimeError: if it is that of a model with another kernel over actions.
        """
        own = type(self._in_space).__name__
        if state["kernel"] != own:
            raise RuntimeError(
                f"Expected the state of a model with the kernel {own} over actions. "
                f"Got that of one with {state['kernel']}."
            )
        # Of its own, since copies of this model share them.
        self._modules = deepcopy(self._modules)
        self._set_data(*(value.to(self._X, copy=True) for value in state["data"]))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if fn(self._Y[:0]).device != self._Y.device:
            self._modules, self._source = deepcopy((self._modules, self._source))
            self.covar_module._apply(fn)
        applied: Self = super()._apply(fn, recurse)
        return applied

    @property
    def _in_space(self) -> RBFKernel | MaternKernel:
        """The kernel over actions with the most probable hyperparameters, in the model's units."""
        kernel: RBFKernel | MaternKernel = self.covar_module.base_kernel.kernels[0].base_kernel
        return kernel

    def _covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances by each set, ``s x ... x q x p``."""
        X1, X2 = X1.unsqueeze(-2), X2.unsqueeze(-3)
        squares = (X1[..., :-1] - X2[..., :-1]).square() @ self.inverse_lengthscales.square().mT
        lags = (X1[..., -1] - X2[..., -1]).abs()
        flat = lags.reshape(1, -1)
        kernels = cast(list[TemporalKernel], self.temporal_kernels)
        in_time = [kernel.correlation(flat) for kernel in kernels]
        in_space = self._correlation.in_torch(squares.movedim(-1, 0))
        covar: Tensor = (
            self.prior_variance * in_space * torch.cat(in_time).view(len(self.weights), *lags.shape)
        )
        return covar

    def _average(self, values: Tensor) -> Tensor:
        """Return the weighted sum over sets, which come first."""
        average: Tensor = torch.tensordot(self.weights, values, 1)
        return average
