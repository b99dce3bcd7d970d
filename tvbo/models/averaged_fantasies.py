"""Gaussian processes with several sets of hyperparameters, given batches of further outcomes."""

from __future__ import annotations

from abc import abstractmethod

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.models.incremental.row_model import RowModel
from tvbo.models.incremental.row_posterior import ConditionedGP, RowPosterior
from tvbo.models.incremental.whitened import Whitened


class HyperparameterAverage(RowModel):
    """What the posterior given further outcomes needs of an average over ``s`` sets.

    Attributes:
        weights: Weights of the sets, ``s``, which sum to one.
    """

    weights: Tensor
    prior_variance: Tensor
    _mean: Tensor
    _X: Tensor
    _Y: Tensor
    _noise: Tensor
    _whitening: Tensor
    _innovations: Tensor

    @abstractmethod
    def _covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances by each set, ``s x ... x q x p``."""


class SetsPosterior(RowPosterior):
    """The posteriors by each set, as a batch of ``s`` models; rows are ``... x 1 x q x d``.

    Args:
        average: The model whose sets they are.
    """

    mean_module = None

    def __init__(self, average: HyperparameterAverage):
        super().__init__()
        self.average = average

    @property
    def covar_module(self) -> Kernel:
        """The kernel with the most probable hyperparameters, in raw units."""
        return self.average.covar_module

    @property
    def batch_shape(self) -> Size:
        """Number of sets."""
        return self.average.weights.shape

    @property
    def noise_variance(self) -> Tensor:
        """σ² by each set, ``s``; where it is known for each observation, their mean."""
        noise: Tensor = self.average._noise.mean(dim=-1)
        return noise

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return self.average.width

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of all observations, ``n x d``."""
        return (self.average._X,)

    @property
    def train_targets(self) -> Tensor:
        """All outcomes, ``n``."""
        return self.average._Y

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        # Rows are the same for each set.
        return self.average._covar(X1[..., 0, :, :], X2[..., 0, :, :]).movedim(0, -3)

    def _whiten(self, X: Tensor) -> Whitened:
        average = self.average
        covar = average._covar(X[..., 0, :, :], average._X).movedim(0, -3)
        V = covar @ average._whitening
        mean = (V @ average._innovations).squeeze(-1) + average._mean.unsqueeze(-1)
        prior = average.prior_variance.expand(mean.shape)
        return Whitened((V,), mean, V.square().sum(dim=-1), prior)


class AveragedFantasies(RowModel):
    """An average over ``s`` sets of hyperparameters with a batch of further observations.

    Args:
        average: The model that was conditioned; the weights remain.
        sets: The posteriors by each set, the last dimension of its batch.
    """

    mean_module = None

    def __init__(self, average: HyperparameterAverage, sets: RowPosterior):
        super().__init__()
        self.average = average
        self.sets = sets

    @classmethod
    def condition(
        cls,
        average: HyperparameterAverage,
        sets: RowPosterior,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None,
    ) -> AveragedFantasies:
        """Return a model with additional observations and the same weights.

        Args:
            average: The model that was conditioned first.
            sets: The posteriors by each set.
            X: Checked rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``.
            noise: Noise variances that broadcast with ``Y``; None for that of each set.
        """
        _, checked = average._residuals(X, Y, noise)
        of_sets = sets.noise_variance.unsqueeze(-1).expand(-1, X.shape[-2])
        variances = of_sets if noise is None else checked.unsqueeze(-2)
        Y = Y.to(X).mT  # ... x 1 x q: the prior means are part of the posterior of the sets
        return cls(average, ConditionedGP(sets, X.unsqueeze(-3), Y, variances))

    @property
    def covar_module(self) -> Kernel:
        """The kernel with the most probable hyperparameters, in raw units."""
        return self.average.covar_module

    @property
    def batch_shape(self) -> Size:
        """Broadcast batch shape of outcomes and rows."""
        return self.sets.batch_shape[:-1]

    @property
    def noise_variance(self) -> Tensor:
        """σ², the averaged noise variance."""
        return self.average.noise_variance

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return self.average.width

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of all observations, ``batch_shape x n x d``."""
        return (self.sets.train_inputs[0][..., 0, :, :],)

    @property
    def train_targets(self) -> Tensor:
        """All outcomes, ``batch_shape x n``."""
        return self.sets.train_targets[..., 0, :]

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> AveragedFantasies:
        """Return a model with additional observations and the same weights.

        Args:
            X: Rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast with
                ``batch_shape``; together they are the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for that of each set.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: as in :meth:`AveragedGP.condition_on_observations`.
        """
        return self.condition(self.average, self.sets, self._checked(X), Y, noise)

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q``."""
        means, covars = self.sets._joint(X.unsqueeze(-3))
        weights = self.average.weights
        mean = torch.tensordot(means, weights, ([-2], [0]))
        deviations = means - mean.unsqueeze(-2)
        covars = covars + deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
        covar = torch.tensordot(covars, weights, ([-3], [0]))
        return mean, covar
