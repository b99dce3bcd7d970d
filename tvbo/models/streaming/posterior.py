"""The BoTorch interface of a streaming posterior: prediction."""

from __future__ import annotations

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.posteriors import Posterior
from gpytorch.means import Mean
from linear_operator.operators import LinearOperator
from torch import Size, Tensor

from tvbo.models.one_output import OneOutputModel
from tvbo.models.streaming.innovations import Innovations
from tvbo.rounding import floor_, floored, floored_posterior
from tvbo.spaces.observations import check_finite, check_last_dimension
from tvbo.spaces.row_index import RowIndex


class Predictions(OneOutputModel):
    """A BoTorch model on a finite set, whose batch elements are independent.

    Attributes:
        row_index: The choices, and the index of each row among them.
        innovations: The observations and the posterior.
        mean_module: Prior mean over rows ``[action | time]``; None is zero.
    """

    row_index: RowIndex
    innovations: Innovations
    mean_module: Mean | None
    _batch_shape: Size
    _noise: Tensor

    @property
    def choices(self) -> Tensor:
        """The choices, ``n x d``."""
        return self.row_index.choices

    @property
    def batch_shape(self) -> Size:
        """Shape of the batch of independent models."""
        return self._batch_shape

    @property
    def noise_variance(self) -> Tensor:
        """σ², ``batch_shape``."""
        return self._noise.reshape(self._batch_shape)

    @property
    def now(self) -> Tensor:
        """Time of the newest observation, ``batch_shape``; minus infinity before any."""
        return self.innovations.now.reshape(self._batch_shape)

    @property
    def forgetting_rate(self) -> Tensor | None:
        """ε per unit of time, ``batch_shape``; None unless time is one exponential decay."""
        rate = self.innovations.prior.forgetting_rate
        return None if rate is None else rate.reshape(self._batch_shape)

    @property
    def is_static(self) -> bool:
        """Whether time makes no difference."""
        return self.innovations.prior.is_static

    @property
    def earliest(self) -> float:
        """Earliest event time that can be observed in the whole batch; may be minus infinity."""
        return self.innovations.earliest.max().item()

    @property
    def num_rows(self) -> int:
        """Number of rows held."""
        return self.innovations.store.count

    @property
    def neglected(self) -> Tensor:
        """Share of the prior variance that dropped rows explained, decayed to the present.

        It is the largest error of a posterior covariance at the moment of dropping; zero if nothing
        was dropped. Later observations usually make the error smaller, but among strongly
        correlated choices they can magnify it. The error of the mean is not included.

        Returns:
            ``batch_shape``, at most 1.
        """
        return self.innovations.neglected.clamp_max(1.0).reshape(self._batch_shape)

    def marginals(self, t: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return posterior mean and variance of every choice at a time.

        Args:
            t: One time, or ``batch_shape`` times, none before the newest observation.

        Returns:
            ``batch_shape x n`` each.

        Raises:
            BotorchTensorDimensionError: if ``t`` has another shape.
            InputDataError: if ``t`` is not finite or lies before the newest observation.
        """
        time = torch.as_tensor(t, dtype=torch.float64).to(self._noise)
        if time.ndim > 0 and time.shape != self._batch_shape:
            raise BotorchTensorDimensionError(
                f"Expected one time, or batch_shape={tuple(self._batch_shape)} times. "
                f"Got t.shape={tuple(time.shape)}."
            )
        time = time.expand(self._batch_shape)
        self._check_time(time, self.now)
        innovations, prior = self.innovations, self.innovations.prior
        lag = innovations.lag(time.reshape(-1))
        mean = prior.read_all(innovations.mean, lag).reshape(*self._batch_shape, -1)
        if self.mean_module is not None:
            rows = self.choices.expand(*self._batch_shape, -1, -1)
            time = time[..., None, None].expand(*rows.shape[:-1], 1)
            mean = mean + self._prior_mean(torch.cat([rows, time], dim=-1))
        every = torch.arange(len(self.choices), device=lag.device).expand(len(lag), -1)
        variance = prior.variances(self._elements, every)
        variance = variance - prior.read_all_explained(innovations.reduction, lag)
        variance = variance.clamp_min(0.0)
        return mean, variance.reshape(*self._batch_shape, -1)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior of ``q`` rows.

        At times before the newest observation, :math:`k` rows held cost :math:`O(k^2 q)`.

        Args:
            X: Rows ``[action | time]``, ``... x q x (d + 1)``, the first dimensions broadcasting
                with ``batch_shape``; no time before :attr:`earliest`.
            output_indices: None or ``[0]``.
            observation_noise: Whether to add ``noise_variance``, or noise variances to add,
                ``... x q x 1``.
            posterior_transform: Applied to the posterior, as in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if an action is none of the choices, or a time is not finite or lies
                before :attr:`earliest`.
            UnsupportedError: if another output is asked for, or a gradient by ``X``.
        """
        self._check_output(output_indices)
        if X.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                "Expected rows without gradients, since the choices are a finite set: maximize "
                "over them, as optimize_acqf_discrete does. Got X with requires_grad=True."
            )
        index, time = self._split(X)
        shape = self._joint_shape(X)
        element = self._elements.reshape(self._batch_shape).expand(shape[:-1])
        earlier = bool((time < self.now.unsqueeze(-1)).any())
        rows = shape[:-1].numel()
        index, time = (each.expand(shape).reshape(rows, shape[-1]) for each in (index, time))
        flat = (element.reshape(-1), index, time)
        with torch.no_grad():
            mean, covar = self._smooth(*flat, shape) if earlier else self._predict(*flat, shape)
        noise = None
        if observation_noise is True:
            noise = self.noise_variance.unsqueeze(-1)
        elif isinstance(observation_noise, Tensor):
            noise = observation_noise.squeeze(-1)
        mean = mean.reshape(shape) + self._prior_mean(X)
        posterior = floored_posterior(mean, covar, noise)
        return self._transformed(posterior, X, posterior_transform)

    def weight(self, age: Tensor) -> Tensor:
        """Return what observations of some ages weigh, for a model without a batch."""
        return self.innovations.prior.weight(age.unsqueeze(0)).squeeze(0)

    def prior_covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return prior covariances of rows ``n x (d + 1)`` and ``m x (d + 1)``, ``n x m``.

        For a model without a batch; with checks, :func:`tvbo.models.covariance.prior_covariance`.
        """
        first, second = (self.row_index.index(X[:, :-1]).unsqueeze(0) for X in (X1, X2))
        lag = (X1[:, -1:] - X2[:, -1]).abs().unsqueeze(0)
        return self.innovations.prior.between(first.new_zeros(1), first, second, lag).squeeze(0)

    def _predict(
        self, element: Tensor, index: Tensor, time: Tensor, shape: Size
    ) -> tuple[Tensor, Tensor | LinearOperator]:
        """Return means and covariances of events, none before the newest observation."""
        mean, variance = self.innovations.predict(element, index, time)
        variance = floored(variance, self.innovations.prior.variances(element, index))
        if shape[-1] == 1:
            return mean, variance.reshape(*shape, 1)
        covariance = self.innovations.covariance(shape[-1])
        return mean, covariance.joint(element, index, time, variance, shape)

    def _smooth(
        self, element: Tensor, index: Tensor, time: Tensor, shape: Size
    ) -> tuple[Tensor, Tensor]:
        """Return means and covariances of events, also before the newest observation."""
        earliest = self.innovations.earliest[element].unsqueeze(-1)
        if (time < earliest).any():
            raise InputDataError(
                f"Expected times >= {earliest.max().item():g}, from where the rows held tell of "
                f"the function. Got t={time.min().item():g}."
            )
        mean, covar = self.innovations.smooth(element, index, time)
        floor_(covar, self.innovations.prior.variances(element, index))
        return mean, covar.reshape(*shape, shape[-1])

    @property
    def _elements(self) -> Tensor:
        return torch.arange(self._noise.numel(), device=self._noise.device)

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices and the times of rows, ``... x q`` each."""
        check_last_dimension("X", X, self.row_index.dim + 1)
        if X.ndim < 2:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x {self.row_index.dim + 1}. "
                f"Got X.shape={tuple(X.shape)}."
            )
        check_finite("X", X)
        return self.row_index.index(X[..., :-1]), X[..., -1].to(self._noise)

    def _joint_shape(self, X: Tensor) -> Size:
        """Return the broadcast batch shape of rows and model, followed by ``q``."""
        if len(self._batch_shape) == 0:
            return X.shape[:-1]
        try:
            return Size((*torch.broadcast_shapes(X.shape[:-2], self._batch_shape), X.shape[-2]))
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                f"Expected X of shape ... x q x {self.row_index.dim + 1} that broadcasts with "
                f"batch_shape={tuple(self._batch_shape)}. Got X.shape={tuple(X.shape)}."
            ) from error

    def _prior_mean(self, X: Tensor) -> Tensor | float:
        if self.mean_module is None:
            return 0.0
        with torch.no_grad():
            mean: Tensor = self.mean_module(X.to(self._noise))
            return mean

    @staticmethod
    def _check_time(time: Tensor, now: Tensor) -> None:
        check_finite("time", time)
        if (time < now).any():
            raise InputDataError(
                f"Expected times at or after the newest observation, t={now.max().item():g}. "
                f"Got t={time.min().item():g}."
            )
