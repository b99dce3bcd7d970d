"""From observations to a streaming posterior, taking in only what is new."""

from __future__ import annotations

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.feedback.pending import Pending
from tvbo.models import StreamingGP
from tvbo.models.raw import RawRowKernel
from tvbo.models.streaming.hyperparameters import with_time
from tvbo.observations import Observations
from tvbo.optimizers.asked_stream import AskedStream
from tvbo.optimizers.noise import least_noise
from tvbo.optimizers.online_surrogate import OnlineSurrogate
from tvbo.optimizers.open_rows import with_open_rows
from tvbo.optimizers.surrogate import GPSurrogate


class StreamingSurrogate(OnlineSurrogate):
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

    last_model: StreamingGP | None

    def __init__(
        self,
        dense: GPSurrogate,
        choices: Tensor,
        tol: float = 1e-12,
        max_rows: int | None = None,
        max_lateness: float | None = None,
    ):
        super().__init__(dense, tol)
        self.choices = choices
        self.max_rows = max_rows
        self.max_lateness = max_lateness
        self._least_noise = 0.0
        self._asked: AskedStream | None = None
        self._asked_like: Model | None = None

    def model_with(
        self,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
        num_told: int,
        generator: Generator,
    ) -> Model:
        """As :meth:`Surrogate.model_with`, at the cost of a round without open trials.

        That holds where all outcomes have the same noise. Otherwise, or where an open trial is so
        old that its row is no longer held, the posterior is factorized in each round.
        """
        if self.last_model is None or self.dense.changes(num_told):
            self.model(observations, num_told, generator)
        self.dense.check_noise(observations)
        if observations.Yvar is None and self.dense.outcome_noise(observations) is not None:
            if self._asked_like is not self.dense.last_model:
                self._asked = None
            if self._asked is not None and self._asked.update(observations, rows, pending):
                return self._asked.model
            # What cannot go on is made anew; if even that cannot take in all, no stream can.
            self._asked = AskedStream(self.last_model.blank())
            self._asked_like = self.dense.last_model
            if self._asked.update(observations, rows, pending):
                return self._asked.model
        self._asked = None
        raw = self.dense.raw_posterior(self.dense.last_model, observations)
        return with_open_rows(raw, observations, rows, pending, self.dense)

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps ``keep`` of the observations: forget the others, if not yet forgotten."""
        if self.last_model is None:
            return
        gone = ~keep
        weighs = self._weighs(observations[gone], t)
        if self._asked is not None and not self._asked.drop(gone, weighs):
            self._asked = None
        seen = int(gone[: self._num_seen].sum())
        if seen > 0 and weighs:
            self._restart()
        else:
            self._num_seen -= seen

    def _from_dense(self, dense: SingleTaskGP) -> StreamingGP:
        with torch.no_grad():
            # Of the largest prior variance: one number, since each round asks for it.
            prior = RawRowKernel(dense)(with_time(self.choices, 0.0), diag=True).max()
        self._least_noise = least_noise(dense, prior).item()
        given = self.dense.noise_variance
        return StreamingGP.from_model(
            dense,
            self.choices,
            noise_variance=None if given is None else max(given, self._least_noise),
            tol=self.tol,
            max_rows=self.max_rows,
            max_lateness=self.max_lateness,
        )

    def _noise(self, observations: Observations) -> Tensor | None:
        known = observations.Yvar
        return None if known is None else known.clamp_min(self._least_noise)

    def _can_take(self, new: Observations) -> bool:
        return len(new) == 0 or new.X[:, -1].min().item() >= self._earliest()

    def _earliest(self) -> float:
        """Earliest event that the model can still take in without being built anew."""
        if self.max_rows is None:
            return self.last_model.earliest
        # Which rows have to go for want of room depends on what comes.
        return self.last_model.now.item()
