"""Hyperparameters of a model over whole rows, and the checks of its inputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from copy import deepcopy

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.posteriors import Posterior
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.models.one_output import OneOutputModel, normal_posterior
from tvbo.rounding import LEAST_VARIANCE
from tvbo.spaces.observations import check_finite, check_last_dimension


class RowModel(OneOutputModel):
    """A BoTorch model of one output whose kernel is over whole rows.

    Attributes:
        covar_module: Kernel over rows.
        mean_module: Prior mean over rows; None is zero.
    """

    covar_module: Kernel
    mean_module: Mean | None
    _noise: Tensor

    @property
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own."""
        return self._noise

    @property
    def batch_shape(self) -> Size:
        """Empty, unless the model was conditioned on a batch."""
        return Size()

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of columns of a row; 0 while it is not known."""

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``1``; None unless one decay in time is the temporal kernel."""
        parts = [each for each in self.covar_module.modules() if isinstance(each, TemporalKernel)]
        if len(parts) == 1 and isinstance(parts[0], TemporalDecayKernel):
            return parts[0].forgetting_rate
        return None

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior of ``q`` rows, differentiable in ``X``.

        Args:
            X: Rows, ``... x q x d``; the first dimensions broadcast with ``batch_shape``. Any
                time, also before the newest observation.
            output_indices: None or ``[0]``.
            observation_noise: Whether to add ``noise_variance``, or noise variances to add,
                ``... x q x 1``.
            posterior_transform: Applied to the posterior, as in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if a value is not finite.
            UnsupportedError: if another output is asked for.
        """
        self._check_output(output_indices)
        mean, covar = self._joint(self._checked(X))
        if X.shape[-2] == 1:
            covar = covar.clamp_min(LEAST_VARIANCE)
        else:
            covar.diagonal(dim1=-2, dim2=-1).clamp_min_(LEAST_VARIANCE)
        noise = None
        if isinstance(observation_noise, Tensor):
            noise = observation_noise.to(mean).squeeze(-1)
        elif observation_noise:
            noise = self.noise_variance
        covar = covar.expand(*mean.shape, mean.shape[-1])
        posterior = normal_posterior(mean, covar, noise)
        return self._transformed(posterior, X, posterior_transform)

    @abstractmethod
    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q``."""

    def _set_hyperparameters(
        self, covar_module: Kernel, noise_variance: Tensor | float, mean_module: Mean | None
    ) -> None:
        """Set fixed copies of the hyperparameters; the noise becomes the buffer ``_noise``.

        Raises:
            ValueError: if ``noise_variance`` is out of range, or the kernel has a batch shape.
        """
        noise = torch.as_tensor(noise_variance, dtype=torch.float64)
        if noise.numel() != 1 or not 0 <= noise < math.inf:
            raise ValueError(
                f"Expected noise_variance >= 0, one finite number. Got {noise_variance}."
            )
        if len(covar_module.batch_shape) > 0:
            raise ValueError(
                "Expected a kernel without a batch. "
                f"Got batch_shape={tuple(covar_module.batch_shape)}."
            )
        for name, module in (("covar_module", covar_module), ("mean_module", mean_module)):
            if module is not None:
                module = deepcopy(module).to(torch.float64).eval().requires_grad_(False)
            setattr(self, name, module)
        self.register_buffer("_noise", noise.reshape(()).clone())

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        return 0.0 if self.mean_module is None else self.mean_module(X)

    def _checked(self, X: Tensor) -> Tensor:
        """Return rows in float64; raise unless their shape fits and they are finite."""
        if X.ndim < 2:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x d. Got X.shape={tuple(X.shape)}."
            )
        if self.width:
            check_last_dimension("X", X, self.width)
        check_finite("X", X)
        try:
            if self.batch_shape:
                torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                "Expected X of shape ... x q x d that broadcasts with "
                f"batch_shape={tuple(self.batch_shape)}. Got X.shape={tuple(X.shape)}."
            ) from error
        return X.to(torch.float64)

    def _residuals(
        self, X: Tensor, Y: Tensor, noise: Tensor | None, noise_name: str = "noise"
    ) -> tuple[Tensor, Tensor]:
        """Return checked outcomes less the prior mean, and their noise variances, ``... x q``."""
        given = {"Y": Y} if noise is None else {"Y": Y, noise_name: noise}
        for name, value in given.items():
            if value.ndim < 2 or value.shape[-2:] != (X.shape[-2], 1):
                raise BotorchTensorDimensionError(
                    f"Expected {name} of shape ... x q x 1 for {X.shape[-2]} rows. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
            check_finite(name, value)
        if noise is None:
            noise = self.noise_variance.expand(X.shape[-2], 1)
        elif (noise < 0).any():
            raise InputDataError(f"Expected {noise_name} >= 0. Got {noise.min().item()}.")
        residual = Y.to(X).squeeze(-1) - self._prior_mean(X)
        return residual, noise.to(X).squeeze(-1)
