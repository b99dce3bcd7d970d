"""What BoTorch asks of every model of one output whose hyperparameters are given."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Self, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from linear_operator import to_linear_operator
from torch import Size, Tensor

from tvbo.spaces.observations import check_finite, check_last_dimension


def one_noise_variance(noise_variance: float | Tensor | None) -> Tensor:
    """Return σ² as a number of its own in float64; raise unless it is one, finite and at least 0.

    Raises:
        ValueError: if it is not.
    """
    given = math.nan if noise_variance is None else noise_variance
    noise = torch.as_tensor(given, dtype=torch.float64)
    if noise.numel() != 1 or not 0 <= noise < math.inf:
        raise ValueError(f"Expected noise_variance >= 0, one finite number. Got {noise_variance}.")
    return noise.reshape(()).clone()


def check_rows(X: Tensor, width: int) -> None:
    """Raise unless rows ``... x q x d`` have a number of columns, if it is not 0, and are finite.

    Raises:
        BotorchTensorDimensionError: if they have another shape.
        InputDataError: if a value is not finite.
    """
    if X.ndim < 2:
        raise BotorchTensorDimensionError(
            f"Expected X of shape ... x q x {width or 'd'}. Got X.shape={tuple(X.shape)}."
        )
    if width:
        check_last_dimension("X", X, width)
    check_finite("X", X)


class OneOutputModel(Model):
    """A BoTorch model of one output, in float64, whose hyperparameters are not learned by it.

    As in :class:`botorch.models.SingleTaskGP`, it may have an ``outcome_transform``: then it takes
    and predicts outcomes that are not transformed, and its parameters are of transformed ones.
    """

    @property
    @abstractmethod
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own, ``batch_shape`` or one number."""

    num_outputs = 1

    # Borrowed, since the mixin declares narrower arguments of the posterior than BoTorch's models.
    fantasize = FantasizeMixin.fantasize

    @property
    @abstractmethod
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations, ``batch_shape x n x d``."""

    @property
    @abstractmethod
    def train_targets(self) -> Tensor:
        """Outcomes, ``batch_shape x n``."""

    @abstractmethod
    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x d`` and ``m x d``, ``n x m``, without gradients.

        They are of transformed outcomes, as ``noise_variance``.
        """

    @abstractmethod
    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q`` at rows, checked here."""

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior of ``q`` rows.

        Args:
            X: Rows, ``... x q x d``; the first dimensions broadcast with ``batch_shape``. Any
                time, also before the newest observation.
            output_indices: None or ``[0]``.
            observation_noise: Whether to add ``noise_variance``, or noise variances to add,
                ``... x q x 1``.
            posterior_transform: Applied to the posterior, as in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if a value is not finite, or an action is none of a finite set.
            UnsupportedError: if another output is asked for, or on a finite set a gradient by
                ``X``.
        """
        self._check_output(output_indices)
        mean, covar = self._joint(X)
        operator = to_linear_operator(covar)
        if isinstance(observation_noise, Tensor):
            operator = operator.add_diagonal(observation_noise.to(mean).squeeze(-1).expand_as(mean))
        elif observation_noise:
            operator = operator.add_diagonal(self.noise_variance.unsqueeze(-1).expand_as(mean))
        posterior: Posterior = GPyTorchPosterior(MultivariateNormal(mean, operator))
        of_outcomes: Any = self._modules.get("outcome_transform")
        if of_outcomes is not None:
            posterior = of_outcomes.untransform_posterior(posterior, X)
        if posterior_transform is not None:
            posterior = posterior_transform(posterior=posterior, X=X)
        return posterior

    def row_marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and variances that :meth:`posterior` has, without building it.

        Args:
            X: Rows, ``... x 1 x d``.

        Returns:
            Means and variances, ``... x 1``.
        """
        mean, covar = self._joint(X)
        variance = covar.squeeze(-1)
        of_outcomes: Any = self._modules.get("outcome_transform")
        if of_outcomes is not None:
            mean, variance = of_outcomes.untransform(mean, variance)
        return mean, variance

    @property
    def likelihood(self) -> GaussianLikelihood:
        """A Gaussian likelihood with ``noise_variance``; changes of it have no effect."""
        noise = self.noise_variance
        positive = GreaterThan(0.0, transform=None)
        likelihood = GaussianLikelihood(noise_constraint=positive, batch_shape=noise.shape)
        likelihood = likelihood.to(noise)
        likelihood.noise = noise.unsqueeze(-1)
        return likelihood.requires_grad_(False).eval()

    def subset_output(self, idcs: list[int]) -> Self:
        """Return a copy of the model.

        Args:
            idcs: ``[0]``.

        Raises:
            UnsupportedError: if another output is asked for.
        """
        self._check_output(idcs)
        return deepcopy(self)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Return the posterior distribution of rows, as a GPyTorch model in eval mode does."""
        return cast(GPyTorchPosterior, self.posterior(X)).distribution

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None
    ) -> Model:
        """Return a model with additional observations, as ``ModelListGP`` asks for it.

        Args:
            inputs: Rows, ``... x q x d``.
            targets: Outcomes, ``... x q``.
            noise: Their noise variances; None for ``noise_variance``.
        """
        noise = None if noise is None else noise.unsqueeze(-1)
        return self.condition_on_observations(inputs, targets.unsqueeze(-1), noise=noise)

    def _check_output(self, indices: list[int] | None) -> None:
        if indices is not None and list(indices) != [0]:
            raise UnsupportedError(f"Expected output_indices [0] or None. Got {indices}.")

    def _read(self, name: str, values: Tensor, q: int) -> Tensor:
        """Return outcomes ``Y``, or else noise variances, ``... x q x 1``, as the parameters are.

        Raises:
            BotorchTensorDimensionError: if they have another shape.
            InputDataError: if a value is not finite, or a noise variance negative.
        """
        if values.ndim < 2 or values.shape[-2:] != (q, 1):
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape ... x q x 1 for {q} rows. "
                f"Got {name}.shape={tuple(values.shape)}."
            )
        check_finite(name, values)
        if name != "Y" and (values < 0).any():
            raise InputDataError(f"Expected {name} >= 0. Got {values.min().item()}.")
        of_outcomes: Any = self._modules.get("outcome_transform")
        if of_outcomes is None:
            return values
        given = (values,) if name == "Y" else (torch.zeros_like(values), values)
        return of_outcomes(*given)[len(given) - 1]

    def _broadcast(self, shapes: Mapping[str, Size]) -> Size:
        """Return the shape of the batch of the model and those given by name."""
        try:
            return Size(torch.broadcast_shapes(self.batch_shape, *shapes.values()))
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                f"Expected {', '.join(shapes)} with batches that broadcast with batch_shape="
                f"{tuple(self.batch_shape)}. Got {[tuple(shape) for shape in shapes.values()]}."
            ) from error

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        device = self.noise_variance.device
        probe = fn(torch.empty(0, dtype=torch.float64, device=device))
        if probe.dtype != torch.float64:
            raise UnsupportedError(
                f"Expected float64, in which {type(self).__name__} computes. Got a cast to another "
                "type; rows and outcomes of any type are taken."
            )
        if probe.device == device:
            # Acquisition functions move their model to the device of X at each evaluation.
            return self
        return super()._apply(fn, recurse)
