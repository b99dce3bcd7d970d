"""From observations to a streaming posterior, taking in only what is new."""

from __future__ import annotations

import torch
from gpytorch.settings import min_fixed_noise
from torch import Generator, Tensor

from tvbo.kernels import temporal_correlation
from tvbo.models import StreamingGP
from tvbo.observations import Observations
from tvbo.optimizers.surrogate import GPSurrogate


class StreamingSurrogate:
    """Keeps a :class:`tvbo.models.StreamingGP` up to date with the observations of a loop.

    With the hyperparameters given, the same posterior as the dense surrogate it is made from.
    Where they are learned, they are learned there, when its ``refit`` says so, from the
    observations that retention kept; then the streaming model is built again from the same
    observations. Between two fits, the scaling of outcomes stays as it was at the last one; the
    dense surrogate scales them anew in each round.

    Args:
        dense: Knows the hyperparameters, or learns them.
        choices: ``n x d``, the finite set.
        tol: As in :class:`tvbo.models.StreamingGP`.
        max_rows: As there.
        max_lateness: As there. An outcome that is told later than this has the model built anew.
    """

    def __init__(
        self,
        dense: GPSurrogate,
        choices: Tensor,
        tol: float = 1e-12,
        max_rows: int | None = None,
        max_lateness: float | None = None,
    ):
        self.dense = dense
        self.choices = choices
        self.tol = tol
        self.max_rows = max_rows
        self.max_lateness = max_lateness
        self.last_model: StreamingGP | None = None
        self._num_seen = 0

    def model(self, observations: Observations, num_told: int, generator: Generator) -> StreamingGP:
        """As :meth:`GPSurrogate.model`."""
        self.dense.check_noise(observations)
        if self.last_model is None or self.dense.changes(num_told):
            dense = self.dense.model(observations, num_told, generator)
            self.last_model = StreamingGP.from_model(
                dense,
                self.choices,
                noise_variance=self.dense.noise_variance,
                tol=self.tol,
                max_rows=self.max_rows,
                max_lateness=self.max_lateness,
            )
            self._num_seen = 0
        new = observations[self._num_seen :]
        if len(new) > 0 and new.X[:, -1].min() < self._earliest():
            self._restart()
            new = observations
        if len(new) > 0:
            self.last_model.observe(new.X, new.Y, self._noise(new))
        self._num_seen = len(observations)
        return self.last_model

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps ``keep`` of the observations: forget the others, if not yet forgotten."""
        if self.last_model is None:
            return
        gone = ~keep
        age = t - observations.X[gone, -1]
        weight = temporal_correlation(age, self.last_model.forgetting_rate).square()
        seen = int(gone[: self._num_seen].sum())
        if (weight > self.tol).any() and seen > 0:
            self._restart()
        else:
            self._num_seen -= seen

    def _earliest(self) -> float:
        """Earliest event that the model can still take in without being built anew."""
        if self.max_rows is None:
            return self.last_model.earliest
        # Which rows have to go for want of room depends on what comes.
        return self.last_model.now.item()

    @staticmethod
    def _noise(observations: Observations) -> Tensor | None:
        """Known variances, no smaller than GPyTorch lets them be: a repeat is never certain."""
        if observations.Yvar is None:
            return None
        return observations.Yvar.clamp_min(min_fixed_noise.value(torch.float64))

    def _restart(self) -> None:
        self.last_model.reset()
        self._num_seen = 0
