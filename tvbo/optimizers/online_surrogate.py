"""From observations to a model that takes in only what is new."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from gpytorch.settings import min_fixed_noise
from torch import Generator, Tensor

from tvbo.kernels import temporal_correlation
from tvbo.models.raw import outcome_scale
from tvbo.models.streaming.innovations import CERTAIN
from tvbo.observations import Observations
from tvbo.optimizers.surrogate import GPSurrogate


class OnlineSurrogate(ABC):
    r"""Keeps a model with ``observe`` and ``reset`` up to date with the observations of a loop.

    With the hyperparameters given, the same posterior as the dense surrogate it is made from.
    Where they are learned, they are learned there, when its ``refit`` says so, from the
    observations that retention kept; then the model is built again from the same observations.
    Between two fits, the scaling of outcomes stays as it was at the last one; the dense surrogate
    scales them anew in each round.

    Args:
        dense: Knows the hyperparameters, or learns them.
        tol: An observation that retention drops may stay in the model once its weight
            :math:`(1-\varepsilon)^{\text{age}}` has fallen to this.
    """

    last_model: Model | None

    def __init__(self, dense: GPSurrogate, tol: float):
        self.dense = dense
        self.tol = tol
        self.last_model = None
        self._num_seen = 0

    @abstractmethod
    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps, at time ``t``, only the observations that the mask ``keep`` names."""

    @abstractmethod
    def _from_dense(self, dense: SingleTaskGP) -> Model:
        """A model with the hyperparameters of the dense one, without observations."""

    def model(self, observations: Observations, num_told: int, generator: Generator) -> Model:
        """As :meth:`GPSurrogate.model`."""
        self.dense.check_noise(observations)
        if self.last_model is None or self.dense.changes(num_told):
            dense = self.dense.model(observations, num_told, generator)
            self.last_model = self._from_dense(dense)
            self._num_seen = 0
        new = observations[self._num_seen :]
        if not self._can_take(new):
            self._restart()
            new = observations
        if len(new) > 0:
            self.last_model.observe(new.X, new.Y, self._noise(new))
        self._num_seen = len(observations)
        return self.last_model

    def changes(self, num_told: int) -> bool:
        """As :meth:`GPSurrogate.changes`."""
        return self.dense.changes(num_told)

    def outcome_noise(self, observations: Observations) -> float | None:
        """As :meth:`GPSurrogate.outcome_noise`."""
        return self.dense.outcome_noise(observations)

    def preview(self, observations: Observations) -> Model:
        """A model of any observations, with the hyperparameters of now; changes nothing here."""
        self.dense.check_noise(observations)
        if self.last_model is None:
            return self.dense.preview(observations)
        model = self._from_dense(self.dense.last_model)
        if len(observations) > 0:
            model.observe(observations.X, observations.Y, self._noise(observations))
        return model

    def _can_take(self, new: Observations) -> bool:
        """Whether the model can take these in, or must be built anew for them."""
        return True

    def _restart(self) -> None:
        self.last_model.reset()
        self._num_seen = 0

    def _weighs(self, gone: Observations, t: float) -> bool:
        """Whether any of some observations has a weight at ``t`` that is not negligible."""
        rate = self.dense.last_model.forgetting_rate
        if rate is None:
            return len(gone) > 0
        weight = temporal_correlation(t - gone.X[:, -1], rate.detach().squeeze()).square()
        return bool((weight > self.tol).any())

    @abstractmethod
    def _noise(self, observations: Observations) -> Tensor | None:
        """Their noise variances, at least :func:`least_noise`; None for the model's own."""


def known_noise(
    dense: GPSurrogate, covar_module: Kernel, observations: Observations
) -> Tensor | None:
    """Noise variances of observations as told or given, ``n x 1``, at least :func:`least_noise`.

    Args:
        dense: Knows what was given, and has made a model.
        covar_module: Kernel over rows, in raw units.
        observations: ``n`` of them.

    Returns:
        The variances; None where the noise is learned.
    """
    known = observations.Yvar
    if known is None and dense.noise_variance is None:
        return None
    if known is None:
        known = torch.full_like(observations.Y, dense.noise_variance)
    with torch.no_grad():
        prior = covar_module(observations.X, diag=True)
    return torch.maximum(known, least_noise(dense.last_model, prior).unsqueeze(-1))


def least_noise(dense: SingleTaskGP, prior_variance: Tensor) -> Tensor:
    """The least noise variance that a dense model takes, in raw units, shape of the prior variance.

    GPyTorch has one in the units that the model sees. Where the kernel is large beside it, a repeat
    would still be certain to rounding, and no further outcome could be taken in.
    """
    least = min_fixed_noise.value(torch.float64) * outcome_scale(dense)[1] ** 2
    return (10 * CERTAIN * prior_variance).clamp_min(least)
