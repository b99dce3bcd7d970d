"""The posterior on a finite set, at constant cost per round."""

from __future__ import annotations

import math

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP
from tvbo.fit.model_fitter import ModelFitter
from tvbo.fit.refit import RefitNever
from tvbo.models import StreamingGP
from tvbo.models.raw import RawRowKernel
from tvbo.models.stream_preview import StreamPreview
from tvbo.models.streaming.raw_action_kernel import with_time
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.pending import IgnorePending, Pending
from tvbo.optimizers.pending_posterior import PendingPosterior
from tvbo.optimizers.posterior_state import PosteriorState, least_noise
from tvbo.rounding import TIE_TOLERANCE
from tvbo.spaces.observations import Observations


class StreamingState(PosteriorState):
    r"""Keep a :class:`tvbo.models.StreamingGP` up to date with the observations.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built anew from
    these. Between two fits, the scaling of outcomes stays as it was at the last one; a dense model
    scales them anew in each round.

    One posterior carries both the outcomes and the pending trials, at the cost of a round without
    delay, where all outcomes have the same noise. Otherwise, or as long as a trial is pending that
    is so old that its row is no longer held, an :class:`IncrementalState` takes its place in each
    round with pending trials: its factor grows with the observations.

    Args:
        fitter: Holds or learns the hyperparameters.
        choices: ``n x d``, the finite set.
        tol: Weight :math:`(1-\varepsilon)^{\text{age}}` at which an observation or a pending trial
            is negligible, as in :class:`tvbo.models.StreamingGP`.
        max_rows: Never hold more rows; None for as many as exactness needs.
        max_lateness: Provide for observations that come late by up to this, in units of time; None
            provides for those later than no more than some hundreds of others. An outcome that is
            told later than this has the model built anew.
    """

    last_model: StreamingGP | None

    def __init__(
        self,
        fitter: ModelFitter,
        choices: Tensor,
        tol: float = 1e-12,
        max_rows: int | None = None,
        max_lateness: float | None = None,
    ):
        super().__init__(fitter)
        self.choices = choices
        self.tol = tol
        self.max_rows = max_rows
        self.max_lateness = max_lateness
        self._posterior: PendingPosterior | None = None
        # Observations in that posterior.
        self._num_seen = 0
        # What takes its place where it cannot hold the pending trials, and whether it does now.
        self._factor: IncrementalState | None = None
        self._is_factored = False
        # Time of the newest pending trial that was too old for a stream.
        self._too_old = -math.inf

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due.

        The observations are taken in by :meth:`condition`, into the form that the pending trials
        allow.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        noise_is_given = self.fitter.noise_variance is not None
        if self._posterior and noise_is_given and isinstance(self.fitter.refit, RefitNever):
            # All hyperparameters are given.
            return
        self.fitter.check_noise(observations)
        if self._posterior is None or self.fitter.may_change(num_told):
            self._posterior = self._without_data(self.fitter.fit(observations, num_told, generator))
            self.last_model = self._posterior.model
            self._num_seen = 0
            self._factor = None
            self._too_old = -math.inf

    def condition(self, observations: Observations, rows: Tensor, pending: Pending) -> Model:
        """Return the posterior given the observations and the pending trials.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.
        """
        assert self.last_model is not None
        if len(rows) > 0:
            now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
            rows = rows[self.last_model.weight(now - rows[:, -1]) > self.tol]
        if self._can_stream(observations, rows) and self._stream(observations, rows, pending):
            self._is_factored = False
            if len(rows) > 0:
                self._factor = None
            return self.last_model
        if self._factor is None:
            self._factor = IncrementalState(self.fitter, self.tol)
            self._factor.start(self.dense)
        self._is_factored = True
        self._factor.take_in(observations)
        return self._factor.condition(observations, rows, pending)

    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> StreamingGP | StreamPreview:
        """Return the posterior that the next round would have without pending trials.

        It comes from the sums over the rows. Where ``keep`` leaves observations out, or new ones
        come too late for the rows that are held, the model is built anew.

        Args:
            observations: Those of the last :meth:`update`, less those dropped since, and new ones.
            keep: Mask of the observations that count, ``n``.
            num_told: Number of outcomes that entered so far.
            generator: Seeds the restarts of a fit.
        """
        self.fitter.check_noise(observations)
        kept = observations[keep]
        if self._posterior is None or self.fitter.may_change(num_told):
            posterior = self._without_data(self.fitter.copy().fit(kept, num_told, generator))
        else:
            new = observations[self._num_seen :]
            if keep.all() and len(new) == 0 and self._posterior.num_pending == 0:
                return self._posterior.model
            posterior = PendingPosterior(self._posterior.model.blank(), self._posterior.least_noise)
            sums = self._posterior.preview(new) if keep.all() else None
            if sums is not None:
                return StreamPreview(posterior.model, sums, posterior.with_noise(kept))
        posterior.update(kept, kept.X[:0], IgnorePending())
        return posterior.model

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        if self._is_factored and self._factor is not None:
            return self._factor.predict(row)
        assert self._posterior is not None
        return self._posterior.predict(row)

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, unless they have lost their weight and are forgotten already.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        if self._posterior is None:
            return
        if self._factor is not None:
            self._factor.drop(observations, keep, t)
        gone = ~keep
        seen = int(gone[: self._num_seen].sum())
        weight = self._posterior.model.weight(t - observations.X[gone][:, -1])
        # A policy that drops at this very weight rounds it otherwise.
        if seen > 0 and (weight > self.tol * (1 + TIE_TOLERANCE)).any():
            self._reset()
        else:
            self._num_seen -= seen

    def restart(self) -> None:
        """Forget all observations: those of the next :meth:`update` are new."""
        if self._posterior is not None:
            self._reset()
            self._factor = None

    def _can_stream(self, observations: Observations, rows: Tensor) -> bool:
        """Return whether a stream might hold these pending trials."""
        if len(rows) == 0:
            return True
        noise_is_given = self.fitter.noise_variance is not None
        return (
            observations.Yvar is None
            and self.max_rows is None
            and self.max_lateness != 0
            and rows[:, -1].min().item() > self._too_old
            and (noise_is_given or self.fitter.outcome_noise(observations) is not None)
        )

    def _stream(self, observations: Observations, rows: Tensor, pending: Pending) -> bool:
        """Bring the stream up to date; return False if it cannot hold the pending trials."""
        posterior = self._posterior
        assert posterior is not None
        try:
            done = posterior.update(observations[self._num_seen :], rows, pending)
            if not done:
                self._reset()
                done = posterior.update(observations, rows, pending)
        except BaseException:
            # What an error leaves half-way is of no use.
            self._reset()
            raise
        if done:
            self._num_seen = len(observations)
            return True
        # Nor could it hold them in the next round, until the oldest of them is closed.
        self._too_old = rows[:, -1].min().item()
        self._reset()
        return False

    def _reset(self) -> None:
        assert self._posterior is not None
        self._posterior.reset()
        self._num_seen = 0

    def _without_data(self, dense: DenseGP) -> PendingPosterior:
        """Return a posterior with the hyperparameters of a dense model."""
        with torch.no_grad():
            # Of the largest prior variance: one number, since each round asks for it.
            prior = RawRowKernel(dense)(with_time(self.choices, 0.0), diag=True).max()
        least = least_noise(dense, prior).item()
        given = self.fitter.noise_variance
        model = StreamingGP.from_model(
            dense,
            self.choices,
            noise_variance=None if given is None else max(given, least),
            tol=self.tol,
            max_rows=self.max_rows,
            max_lateness=self.max_lateness,
        )
        return PendingPosterior(model, least)
