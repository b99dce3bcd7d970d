"""A posterior over any rows: the BoTorch side of it, and what a few more observations change."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.sampling import MCSampler
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Size, Tensor
from torch.nn import Module

from tvbo.kernels import TemporalDecayKernel
from tvbo.models.incremental.whitened import Whitened, innovation_root
from tvbo.models.scale import floor_, floored_posterior
from tvbo.validation import check_finite, check_last_dimension


class RowPosterior(Model):
    """A BoTorch model of one output whose kernel sees whole rows.

    Attributes:
        covar_module: Kernel over rows.
        mean_module: Prior mean over rows; None is zero.
    """

    covar_module: Kernel
    mean_module: Mean | None

    @property
    @abstractmethod
    def noise_variance(self) -> Tensor:
        """σ² of an outcome that comes without its own."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns of a row; 0 while that is not known."""

    @abstractmethod
    def _whiten(self, X: Tensor) -> Whitened:
        """How the rows ``... x q x d`` depend on what was observed."""

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, 1; None where the kernel has no factor that forgets."""
        for part in self.covar_module.modules():
            if isinstance(part, TemporalDecayKernel):
                return part.forgetting_rate
        return None

    @property
    def likelihood(self) -> GaussianLikelihood:
        """The noise as fitted models have it, in units of the outcome; a copy, to be read."""
        positive = GreaterThan(0.0, transform=None)
        likelihood = GaussianLikelihood(noise_constraint=positive).to(self.noise_variance)
        likelihood.noise = self.noise_variance
        return likelihood.requires_grad_(False).eval()

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Joint posterior of ``q`` rows at a time, differentiable in ``X``.

        Args:
            X: Rows, ``... x q x d``; the first dimensions broadcast with ``batch_shape``. Any
                time, also before the newest observation.
            output_indices: None or ``[0]``.
            observation_noise: True adds ``noise_variance``; a tensor ``... x q x 1`` is added.
            posterior_transform: As in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if a value is not finite.
            UnsupportedError: if another output is asked for.
        """
        if output_indices not in (None, [0]):
            raise UnsupportedError(f"Expected output_indices [0] or None. Got {output_indices}.")
        X = self._checked(X)
        mean, covar, prior = self._joint(X, self._whiten(X))
        floor_(covar, prior)
        noise = None
        if observation_noise is not False:
            known = torch.is_tensor(observation_noise)
            noise = observation_noise.to(mean).squeeze(-1) if known else self.noise_variance
        covar = covar.expand(*mean.shape, mean.shape[-1])
        posterior = floored_posterior(mean, covar, noise)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> ConditionedGP:
        """A model that has seen more; this one does not change, nor does that one with it.

        Args:
            X: Rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast with
                ``batch_shape``; together they are the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise negative, or an outcome was certain
                already.
        """
        X = self._checked(X)
        residual, noise = self._outcomes(X, Y, noise)
        return ConditionedGP(self._settled(), X, residual, noise)

    def fantasize(
        self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None
    ) -> ConditionedGP:
        """Models that have seen outcomes drawn from the posterior at ``X``; they share the factor.

        Args:
            X: Rows, ``... x q x d``.
            sampler: Draws the outcomes; its sample shape leads the batch shape.
            observation_noise: Noise variances ``... x q x 1``; None for ``noise_variance``.
        """
        noise = True if observation_noise is None else observation_noise
        Y = sampler(self.posterior(X, observation_noise=noise))
        return self.condition_on_observations(X, Y, observation_noise)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a saved state, with its observations, in a model made with the same arguments.

        Predictions and what follows from further observations are then those of the saved model to
        the last bit. A state survives ``torch.save`` and ``torch.load(weights_only=True)``.

        Args:
            state_dict: As :meth:`state_dict` gave it.
            strict: As in PyTorch.
            assign: As in PyTorch.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows or parameters of
                another shape. Nothing is loaded then.
        """
        # PyTorch complains only after it has loaded whatever fits: so it does on a copy.
        Model.load_state_dict(deepcopy(self), state_dict, strict=strict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _hold(self, covar_module: Kernel, noise_variance: float, mean_module: Mean | None) -> None:
        """Take over hyperparameters, copied and held fixed; the noise as a buffer ``_noise``.

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
        self.covar_module = _held_fixed(covar_module)
        self.mean_module = None if mean_module is None else _held_fixed(mean_module)
        self.register_buffer("_noise", noise.reshape(()).clone())

    def _settled(self) -> RowPosterior:
        """This model as it is now, whatever it learns later."""
        return self

    def _joint(self, X: Tensor, white: Whitened) -> tuple[Tensor, Tensor, Tensor]:
        """Means ``... x q``, covariances ``... x q x q`` and prior variances ``... x q``."""
        if X.shape[-2] == 1:
            known = white.prior is not None
            prior = white.prior if known else to_dense(self.covar_module(X, diag=True))
            covar = (prior - white.reduction).unsqueeze(-1)
        else:
            covar = to_dense(self.covar_module(X))
            prior = covar.diagonal(dim1=-2, dim2=-1)
            covar = covar - white.explained(white)
        return white.mean + self._prior_mean(X), covar, prior

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        return 0.0 if self.mean_module is None else self.mean_module(X)

    def _checked(self, X: Tensor) -> Tensor:
        if X.ndim < 2:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x d. Got X.shape={tuple(X.shape)}."
            )
        if self.width:
            check_last_dimension("X", X, self.width)
        check_finite("X", X)
        try:
            torch.broadcast_shapes(X.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                "Expected X of shape ... x q x d that broadcasts with "
                f"batch_shape={tuple(self.batch_shape)}. Got X.shape={tuple(X.shape)}."
            ) from error
        return X.to(torch.float64)

    def _outcomes(
        self, X: Tensor, Y: Tensor, noise: Tensor | None, noise_name: str = "noise"
    ) -> tuple[Tensor, Tensor]:
        """Checked outcomes less the prior mean, and their noise variances, ``... x q``."""
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


class ConditionedGP(RowPosterior):
    """A posterior given a few more observations, of which there may be a batch.

    The observations of the model it comes from, and their factor, are shared by the whole batch.

    Args:
        given: The model it comes from, which must not change.
        X: Rows, ``... x q x d``.
        residual: Outcomes less the prior mean, ``... x q``.
        noise: Noise variances, ``... x q``.

    Raises:
        BotorchTensorDimensionError: if the batches do not broadcast.
        InputDataError: if an outcome was certain already.
    """

    def __init__(self, given: RowPosterior, X: Tensor, residual: Tensor, noise: Tensor):
        super().__init__()
        shapes = (given.batch_shape, X.shape[:-2], residual.shape[:-1], noise.shape[:-1])
        try:
            self._batch_shape = torch.broadcast_shapes(*shapes)
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                "Expected batches of X, Y and noise that broadcast with batch_shape="
                f"{tuple(given.batch_shape)}. Got {[tuple(shape) for shape in shapes[1:]]}."
            ) from error
        self.given = given
        self.covar_module = given.covar_module
        self.mean_module = given.mean_module
        self._X = X.clone()
        self._white = given._whiten(self._X)
        prior = to_dense(self.covar_module(self._X))
        self._root = innovation_root(prior - self._white.explained(self._white), noise, prior)
        surprise = (residual - self._white.mean).unsqueeze(-1)
        self._gains = torch.linalg.solve_triangular(self._root, surprise, upper=False)

    @property
    def batch_shape(self) -> Size:
        """That of the outcomes, broadcast with those of the rows and of the model before."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """As in the model it comes from."""
        return self.given.noise_variance

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._X.shape[-1]

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        raise UnsupportedError(
            "Expected a model to save that can be made without its observations. Got a "
            "ConditionedGP: save the model that was conditioned, and condition it again."
        )

    def _whiten(self, X: Tensor) -> Whitened:
        white = self.given._whiten(X)
        # Kernels broadcast the batches of their two inputs only if both have as many dimensions.
        shape = torch.broadcast_shapes(self._X.shape[:-2], X.shape[:-2])
        one, two = (x.expand(*shape, *x.shape[-2:]) for x in (self._X, X))
        covar = to_dense(self.covar_module(one, two)) - self._white.explained(white)
        V = torch.linalg.solve_triangular(self._root, covar, upper=False).mT
        mean = white.mean + (V @ self._gains).squeeze(-1)
        reduction = white.reduction + V.square().sum(dim=-1)
        return Whitened((*white.V, V), mean, reduction, white.prior)


def _held_fixed(module: Module) -> Module:
    """A copy in float64 that does not learn."""
    return deepcopy(module).to(torch.float64).eval().requires_grad_(False)
