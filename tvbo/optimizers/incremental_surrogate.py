"""From observations to a posterior on any rows, taking in only what is new."""

from __future__ import annotations

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.models import IncrementalGP
from tvbo.observations import Observations
from tvbo.optimizers.noise import known_noise
from tvbo.optimizers.online_surrogate import OnlineSurrogate
from tvbo.optimizers.open_rows import with_open_rows
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.surrogate import GPSurrogate


class IncrementalSurrogate(OnlineSurrogate):
    r"""Keeps a :class:`tvbo.models.IncrementalGP` up to date with the observations of a loop.

    For boxes and for contexts between bounds; on a finite set of moderate size,
    :class:`StreamingSurrogate` is faster. Hyperparameters are learned as there. On a finite set of
    actions, evaluate all at once: ``FiniteSpace(choices, chunk=len(choices))``.

    Args:
        dense: Knows the hyperparameters, or learns them.
        tol: Of the observations that retention drops, those whose weight
            :math:`(1-\varepsilon)^{\text{age}}` has fallen to this stay in the model until they
            are a third of it; the others go at once, for which the rest is factorized anew. A
            recommendation for a time long past may see them still.
    """

    last_model: IncrementalGP | None

    def __init__(self, dense: GPSurrogate, tol: float = 1e-12):
        super().__init__(dense, tol)
        # Of each observation in the model, whether retention still keeps it.
        self._kept = torch.ones(0, dtype=torch.bool)

    def model(
        self, observations: Observations, num_told: int, generator: Generator
    ) -> IncrementalGP:
        """As :meth:`GPSurrogate.model`."""
        previous = self.last_model
        model = super().model(observations, num_told, generator)
        if model is not previous:
            self._kept = self._kept[:0]
        num_new = model.num_observations - len(self._kept)
        self._kept = torch.cat([self._kept, self._kept.new_ones(num_new)])
        return model

    def model_with(
        self,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
        num_told: int,
        generator: Generator,
    ) -> Model:
        """As :meth:`Surrogate.model_with`."""
        model = self.model(observations, num_told, generator)
        return with_open_rows(model, observations, rows, pending, self.dense)

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps ``keep`` of the observations: forget the others, or soon."""
        gone = ~keep[: self._num_seen]
        if not gone.any():
            return
        kept = self._kept.clone()
        kept[self._kept.nonzero().squeeze(-1)[gone]] = False
        many = 3 * int((~kept).sum()) >= len(kept)
        if many or self._weighs(observations[: self._num_seen][gone], t):
            self.last_model.drop(kept)
            kept = kept[kept]
        self._kept = kept
        self._num_seen -= int(gone.sum())

    def _from_dense(self, dense: SingleTaskGP) -> IncrementalGP:
        return IncrementalGP.from_model(dense, self.dense.noise_variance)

    def _noise(self, observations: Observations) -> Tensor | None:
        return known_noise(self.dense, self.last_model.covar_module, observations)
