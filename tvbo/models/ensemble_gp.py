"""Posteriors over any rows, by one or several sets of hyperparameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.model import Model
from botorch.posteriors import Posterior
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Size, Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.models.one_output import OneOutputModel, check_rows
from tvbo.rounding import LEAST_VARIANCE, innovation_root
from tvbo.spaces.observations import check_finite


class CrossCovarianceFactor(NamedTuple):
    r"""How the function at some rows depends on what was observed, by each of ``s`` sets.

    The innovations are the outcomes whitened by the Cholesky factor of their covariance, so that
    the posterior covariance of two sets of rows is the prior one less the products of their ``V``.

    Args:
        V: Covariances of the rows with the innovations, ``... x s x q x k``, one tensor for each
            group of observations.
        mean: Posterior mean less the prior mean, ``... x s x q``.
        reduction: Prior variance less posterior variance, ``... x s x q``.
        prior: Prior variance, ``... x s x q``.
    """

    V: tuple[Tensor, ...]
    mean: Tensor
    reduction: Tensor
    prior: Tensor


class Observed(NamedTuple):
    """Observations, and the Cholesky factor of their covariance.

    Args:
        X: Rows, ``n x d``.
        residual: Outcomes less the prior mean, ``n``.
        noise: Noise variances, ``n``.
        root: The factor, ``n x n``, lower triangular.
    """

    X: Tensor
    residual: Tensor
    noise: Tensor
    root: Tensor


class EnsembleGP(OneOutputModel):
    r"""A BoTorch model over whole rows, by one or several sets of hyperparameters.

    With weights :math:`w_s`, and :math:`\mu_s` and :math:`\Sigma_s` the posterior by the s-th set,
    the posterior is a Gaussian with the moments of their mixture,

    .. math:: \mu = \sum_s w_s \mu_s, \quad
        \Sigma = \sum_s w_s \big(\Sigma_s + (\mu_s - \mu)(\mu_s - \mu)^\top\big).

    Attributes:
        covar_module: Kernel over rows; of several sets, that with the most probable
            hyperparameters.
        mean_module: Prior mean over rows; None is zero. Of several sets there is none.
        weights: Weights of the sets, ``s``, which sum to one.
    """

    covar_module: Kernel
    mean_module: Mean | None
    weights: Tensor
    _noise_variance: Tensor
    _X: Tensor

    @property
    def batch_shape(self) -> Size:
        """Empty, unless the model was conditioned on a batch."""
        return Size()

    @property
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own; of several sets, the average."""
        return self._noise_variance

    @property
    def width(self) -> int:
        """Number of columns of a row; 0 while it is not known."""
        return self._X.shape[-1]

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
        covar = covar.expand(*mean.shape, mean.shape[-1])
        return self._posterior(mean, covar, X, observation_noise, posterior_transform)

    def row_marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and variances that :meth:`posterior` has, without building it.

        Args:
            X: Rows, ``... x 1 x d``.

        Returns:
            Means and variances, ``... x 1``.
        """
        mean, covar = self._joint(self._checked(X))
        variance = covar.squeeze(-1).clamp_min(LEAST_VARIANCE).expand_as(mean)
        of_outcomes = getattr(self, "outcome_transform", None)
        if of_outcomes is not None:
            mean, variance = of_outcomes.untransform(mean, variance)
        return mean, variance

    # BoTorch's method takes any keyword; this one refuses those that it would ignore.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None
    ) -> EnsembleGP:
        """Return a model with additional observations, independent of later changes of this one.

        Each set takes the outcomes as they are, and keeps its weight: an outcome at the average
        mean moves that a little.

        Args:
            X: Rows, ``... x q x d``.
            Y: Outcomes, ``... x q x 1``. The first dimensions of both broadcast with
                ``batch_shape``; together they are the batch shape of the new model.
            noise: Noise variances that broadcast with ``Y``; None for that of each set.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, a noise variance negative, or the predictive
                variance of an outcome numerically zero.
        """
        X = self._checked(X)
        Y, noise = self._outcomes(X, Y, noise)
        new = ConditionedGP(self.snapshot(), X, Y, noise)
        if hasattr(self, "outcome_transform"):
            new.outcome_transform = self.outcome_transform
        return new

    def snapshot(self) -> EnsembleGP:
        """Return a model that further observations of this one do not change."""
        return self

    def observed(self) -> Observed | None:
        """Return what the posterior is given; None with several sets, or if there is a batch."""
        return None

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Restore a saved state, observations included, in a model built with the same arguments.

        A state survives ``torch.save`` and ``torch.load(weights_only=True)``.

        Args:
            state_dict: A state that :meth:`state_dict` returned.
            strict: As in PyTorch.
            assign: As in PyTorch.

        Raises:
            RuntimeError: if it is the state of another kind of model, or of rows or parameters of
                another shape. Nothing is loaded then.
        """
        # First into a copy, because PyTorch raises only after it has loaded whatever fits.
        Model.load_state_dict(deepcopy(self), state_dict, strict=strict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    @property
    @abstractmethod
    def _set_noise(self) -> Tensor:
        """σ² by each set, ``s``."""

    @abstractmethod
    def _factor(self, X: Tensor) -> CrossCovarianceFactor:
        """Return how the function at rows ``... x q x d`` depends on the observations."""

    @abstractmethod
    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``... x q x d`` and ``... x p x d`` by each set.

        Returns:
            ``... x s x q x p``.
        """

    @abstractmethod
    def _prior_mean(self, X: Tensor) -> Tensor:
        """Return prior means of rows ``... x q x d`` by each set, ``... x s x q``."""

    def _joint(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means ``... x q`` and covariances ``... x q x q``."""
        factor = self._factor(X)
        means = factor.mean + self._prior_mean(X)
        if X.shape[-2] == 1:
            covars = (factor.prior - factor.reduction).unsqueeze(-1)
        else:
            covars = self._prior_covar(X, X) - explained(factor.V, factor.V)
        if means.shape[-2] == 1:
            return means.squeeze(-2), covars.squeeze(-3)
        mean = torch.tensordot(means, self.weights, ([-2], [0]))
        deviations = means - mean.unsqueeze(-2)
        covars = covars + deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
        return mean, torch.tensordot(covars, self.weights, ([-3], [0]))

    def _checked(self, X: Tensor) -> Tensor:
        """Return rows in float64; raise unless their shape fits and they are finite."""
        check_rows(X, self.width)
        if self.batch_shape:
            self._broadcast({"X": X.shape[:-2]})
        return X.to(torch.float64)

    def _outcomes(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return checked outcomes ``... x q``, and noise variances by each set, ``... x s x q``."""
        given = {"Y": Y} if noise is None else {"Y": Y, "noise": noise}
        for name, value in given.items():
            if value.ndim < 2 or value.shape[-2:] != (X.shape[-2], 1):
                raise BotorchTensorDimensionError(
                    f"Expected {name} of shape ... x q x 1 for {X.shape[-2]} rows. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
            check_finite(name, value)
        Y = self._transformed(Y.to(X)).squeeze(-1)
        if noise is None:
            return Y, self._set_noise.unsqueeze(-1).expand(-1, X.shape[-2])
        if (noise < 0).any():
            raise InputDataError(f"Expected noise variances >= 0. Got {noise.min().item()}.")
        return Y, self._transformed(noise.to(X), are_variances=True).mT


class ConditionedGP(EnsembleGP):
    """A posterior with a few more observations, or a batch of them.

    The observations of the model it comes from, and their factor, are shared by the whole batch.
    So are its kernel and its mean. Its state contains that of the model it comes from, and can be
    loaded into one made with observations of the same shapes.

    Args:
        given: The model it comes from, which must not change.
        X: Rows, ``... x q x d``; ``q`` may be 0.
        Y: Outcomes, ``... x q``.
        noise: Noise variances by each set, ``... x s x q``.

    Raises:
        BotorchTensorDimensionError: if the batches do not broadcast.
        InputDataError: if the predictive variance of an outcome is numerically zero.
    """

    remembers_rows: ClassVar[bool] = True
    """The last rows are cached, so that all are evaluated at once."""

    _Y: Tensor
    _noise: Tensor
    _root: Tensor
    _innovations: Tensor

    def __init__(self, given: EnsembleGP, X: Tensor, Y: Tensor, noise: Tensor):
        super().__init__()
        shapes = {"X": X.shape[:-2], "Y": Y.shape[:-1], "noise": noise.shape[:-2]}
        self._batch_shape = given._broadcast(shapes)
        self.given = given
        X = X.clone()
        factor = given._factor(X)
        covar = given._prior_covar(X, X) - explained(factor.V, factor.V)
        root = innovation_root(covar, noise, factor.prior)
        unexplained = Y.unsqueeze(-2) - given._prior_mean(X) - factor.mean
        innovations = torch.linalg.solve_triangular(root, unexplained.unsqueeze(-1), upper=False)
        own = {"_X": X, "_Y": Y.clone(), "_noise": noise.clone()}
        own |= {"_root": root, "_innovations": innovations}
        own |= {f"_V{i}": V for i, V in enumerate(factor.V)}
        for name, value in own.items():
            self.register_buffer(name, value)
        self._num_groups = len(factor.V)

    @property
    def covar_module(self) -> Kernel:
        """Kernel over rows; of several sets, that with the most probable hyperparameters."""
        return self.given.covar_module

    @property
    def mean_module(self) -> Mean | None:  # type: ignore[override]
        """Prior mean over rows; None is zero."""
        return self.given.mean_module

    @property
    def weights(self) -> Tensor:  # type: ignore[override]
        """Weights of the sets, ``s``, which sum to one."""
        return self.given.weights

    @property
    def batch_shape(self) -> Size:
        """Broadcast batch shape of outcomes, rows and the model that was conditioned."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """σ², the noise variance of outcomes without their own."""
        return self.given.noise_variance

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of all observations, ``batch_shape x n x d``."""
        parts = (*self.given.train_inputs, self._X)
        return (torch.cat([x.expand(*self.batch_shape, *x.shape[-2:]) for x in parts], dim=-2),)

    @property
    def train_targets(self) -> Tensor:
        """All outcomes, ``batch_shape x n``."""
        parts = (self.given.train_targets, self._Y)
        return torch.cat([y.expand(*self.batch_shape, y.shape[-1]) for y in parts], dim=-1)

    def observed(self) -> Observed | None:
        """Return what the posterior is given; None with several sets, or if there is a batch."""
        given = self.given.observed()
        if given is None or self.batch_shape:
            return None
        n, q = len(given.X), len(self._X)
        root = given.root.new_zeros(n + q, n + q)
        root[:n, :n] = given.root
        root[n:, :n] = torch.cat(self._V, dim=-1)[0]
        root[n:, n:] = self._root[0]
        residual = self._Y - self._prior_mean(self._X)[0]
        return Observed(
            torch.cat([given.X, self._X]),
            torch.cat([given.residual, residual]),
            torch.cat([given.noise, self._noise[0]]),
            root,
        )

    @property
    def _V(self) -> tuple[Tensor, ...]:
        """Covariances of the own rows with the innovations of each group of earlier ones."""
        return tuple(getattr(self, f"_V{i}") for i in range(self._num_groups))

    @property
    def _set_noise(self) -> Tensor:
        return self.given._set_noise

    def _prior_covar(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.given._prior_covar(X1, X2)

    def _prior_mean(self, X: Tensor) -> Tensor:
        return self.given._prior_mean(X)

    def _factor(self, X: Tensor) -> CrossCovarianceFactor:
        known = self.given._factor(X)
        # Kernels broadcast the batches of their two inputs only if both have as many dimensions.
        shape = torch.broadcast_shapes(self._X.shape[:-2], X.shape[:-2])
        one, two = (x.expand(*shape, *x.shape[-2:]) for x in (self._X, X))
        covar = self._prior_covar(one, two) - explained(self._V, known.V)
        V = torch.linalg.solve_triangular(self._root, covar, upper=False).mT
        mean = known.mean + (V @ self._innovations).squeeze(-1)
        reduction = known.reduction + V.square().sum(dim=-1)
        return CrossCovarianceFactor((*known.V, V), mean, reduction, known.prior)


def explained(V: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> Tensor:
    """Return what observations explain of covariances, from covariances with their innovations.

    Args:
        V: Of the first rows, ``... x q x k``, one tensor for each group of observations.
        other: Of the second rows, ``... x p x k``.

    Returns:
        ``... x q x p``.
    """
    first, *rest = (mine @ theirs.mT for mine, theirs in zip(V, other, strict=True))
    return sum(rest, start=first)
