"""From observations to a streaming posterior, taking in only what is new."""

from __future__ import annotations

import math

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.feedback.pending import Pending
from tvbo.kernels import temporal_correlation
from tvbo.models import StreamingGP
from tvbo.models.raw import RawRowKernel
from tvbo.models.streaming.raw_action_kernel import with_time
from tvbo.observations import Observations
from tvbo.optimizers.asked_stream import AskedStream
from tvbo.optimizers.incremental_surrogate import IncrementalSurrogate
from tvbo.optimizers.noise import least_noise
from tvbo.optimizers.online_surrogate import OnlineSurrogate
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
        # Of the model with these hyperparameters: the stream in which open trials have their rows,
        # or where there can be none, the form that has a factor of all observations.
        self._like: Model | None = None
        self._asked: AskedStream | None = None
        self._factorized: IncrementalSurrogate | None = None
        self._too_old = -math.inf

    def model_with(
        self,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
        num_told: int,
        generator: Generator,
    ) -> Model:
        """As :meth:`Surrogate.model_with`, at the cost of a round without open trials.

        That holds where all outcomes have the same noise. Otherwise, or as long as a trial is open
        that is so old that its row is no longer held, a factor of all observations is kept instead,
        which grows with them.
        """
        if self.last_model is None or self.dense.changes(num_told):
            self.model(observations, num_told, generator)
        self.dense.check_noise(observations)
        rows = rows[self._weights(rows, observations) > self.tol]
        if len(rows) == 0:
            return self.model(observations, num_told, generator)
        if self._like is not self.dense.last_model:
            self._like = self.dense.last_model
            self._asked = self._factorized = None
            self._too_old = -math.inf
        oldest = rows[:, -1].min().item()
        if oldest > self._too_old:
            asked = self._follow(observations, rows, pending)
            if asked is not None:
                self._factorized = None
                return asked
            # No stream could take these rows in the next round either, until that one is closed.
            self._too_old = oldest
        if self._factorized is None:
            self._factorized = IncrementalSurrogate(self.dense, self.tol)
            self._factorized.start(self._like)
        return self._factorized.model_with(observations, rows, pending, num_told, generator)

    def _follow(
        self, observations: Observations, rows: Tensor, pending: Pending
    ) -> StreamingGP | None:
        """The stream of all that was asked, brought up to date; None if there can be none."""
        if observations.Yvar is not None or self.dense.outcome_noise(observations) is None:
            return None
        # Out of hand while it changes: what an error leaves half-way is of no use.
        asked, self._asked = self._asked, None
        if asked is None or not asked.update(observations, rows, pending):
            # What cannot go on is made anew; if even that cannot take in all, no stream can.
            asked = AskedStream(self.last_model.blank())
            if not asked.update(observations, rows, pending):
                return None
        self._asked = asked
        return asked.model

    def _weights(self, rows: Tensor, observations: Observations) -> Tensor:
        """What rows weigh at present, at least, ``q``."""
        now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
        rate = self.dense.last_model.forgetting_rate
        if rate is None:
            return torch.ones(len(rows), dtype=torch.float64)
        return temporal_correlation(now - rows[:, -1], rate.detach().squeeze()).square()

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps ``keep`` of the observations: forget the others, if not yet forgotten."""
        if self.last_model is None:
            return
        gone = ~keep
        weighs = self._weighs(observations[gone], t)
        if self._asked is not None and not self._asked.drop(gone, weighs):
            self._asked = None
        if self._factorized is not None:
            self._factorized.drop(observations, keep, t)
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
