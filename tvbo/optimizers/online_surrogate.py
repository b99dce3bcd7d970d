"""From observations to a model that takes in only what is new."""

from __future__ import annotations

from abc import ABC, abstractmethod

from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.kernels import temporal_correlation
from tvbo.observations import Observations
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.ties import TIE_TOLERANCE


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

    def start(self, dense: SingleTaskGP) -> None:
        """Begin with the hyperparameters of a dense model, and without observations."""
        self.last_model = self._from_dense(dense)
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
            self.start(self.dense.model(observations, num_told, generator))
        new = observations[self._num_seen :]
        if not self._can_take(new):
            self._restart()
            new = observations
        if len(new) > 0:
            self.last_model.observe(new.X, new.Y, self._noise(new))
        self._num_seen = len(observations)
        return self.last_model

    @property
    def unit(self) -> float:
        """As in :class:`GPSurrogate`."""
        return self.dense.unit

    @property
    def newest_fit(self) -> dict[str, list[float]] | None:
        """As in :class:`Surrogate`."""
        return self.dense.newest_fit

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
        # A policy that drops at this very weight rounds it otherwise.
        return bool((weight > self.tol * (1 + TIE_TOLERANCE)).any())

    @abstractmethod
    def _noise(self, observations: Observations) -> Tensor | None:
        """Their noise variances, at least :func:`least_noise`; None for the model's own."""
