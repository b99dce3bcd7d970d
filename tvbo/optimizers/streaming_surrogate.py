"""From observations to a streaming posterior, taking in only what is new."""

from __future__ import annotations

from torch import Generator, Tensor

from tvbo.kernels import temporal_correlation
from tvbo.models import StreamingGP
from tvbo.observations import Observations
from tvbo.optimizers.surrogate import GPSurrogate


class StreamingSurrogate:
    """Keeps a :class:`tvbo.models.StreamingGP` up to date with the observations of a loop.

    The same posterior as the dense surrogate it is made from. Hyperparameters are learned there,
    when its ``refit`` says so, from the observations that retention kept; after that the streaming
    model is built again from the same observations.

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
        if len(new) > 0 and new.X[:, -1].min() < self.last_model.earliest:
            self._restart()
            new = observations
        if len(new) > 0:
            self.last_model.observe(new.X, new.Y, new.Yvar)
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

    def _restart(self) -> None:
        self.last_model.reset()
        self._num_seen = 0
