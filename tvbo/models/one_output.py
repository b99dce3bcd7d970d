"""What BoTorch asks of every model of one output whose hyperparameters are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from typing import Self, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import FantasizeMixin, Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor


class OneOutputModel(Model):
    """A BoTorch model of one output, in float64, whose hyperparameters are not learned by it."""

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

    def _transformed(
        self, posterior: Posterior, X: Tensor, transform: PosteriorTransform | None
    ) -> Posterior:
        """Return the posterior at ``X`` after a transform, if there is one."""
        return posterior if transform is None else transform(posterior=posterior, X=X)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if fn(torch.empty(0, dtype=torch.float64)).dtype != torch.float64:
            raise UnsupportedError(
                f"Expected float64, in which {type(self).__name__} computes. Got a cast to another "
                "type; rows and outcomes of any type are taken."
            )
        applied: Self = super()._apply(fn, recurse)
        return applied
