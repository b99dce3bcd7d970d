"""The posterior on any rows, which grows by what is new."""

from __future__ import annotations

from copy import copy

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import IncrementalGP
from tvbo.optimizers.posterior_state import RowPosteriorState, weights
from tvbo.rounding import TIE_TOLERANCE
from tvbo.spaces.observations import Observations


class IncrementalState(RowPosteriorState):
    r"""Keep a :class:`tvbo.models.IncrementalGP` up to date with the observations.

    For boxes and for contexts between bounds; on a finite set of moderate size,
    :class:`StreamingState` is faster.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built again from
    these. Between two fits, the scaling of outcomes stays as it was at the last one; a dense model
    scales them again in each round.

    Args:
        fitter: Holds or learns the hyperparameters.
        tol: Of the observations that retention discards, those whose weight
            :math:`(1-\varepsilon)^{\text{age}}` has fallen to this stay in the model until they
            are a third of it; the others are removed at once, for which the rest is factorized
            again. A recommendation for a time long past may see them still.
    """

    last_model: IncrementalGP | None

    def __init__(self, fitter: ModelFitter, tol: float = 1e-12):
        super().__init__(fitter)
        self.tol = tol
        self._num_seen = 0
        # Of each observation in the model, whether retention still keeps it.
        self._kept = torch.ones(0, dtype=torch.bool)

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due, and add a row for each new observation.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        self.fitter.check_noise(observations)
        if self.last_model is None or self.fitter.may_change(num_told):
            self.start(self.fitter.fit(observations, num_told, generator))
        self.take_in(observations)

    @property
    def model(self) -> IncrementalGP:
        """The model of the observations that were taken in."""
        assert self.last_model is not None
        return self.last_model

    def start(self, dense: DenseGP) -> None:
        """Begin with the hyperparameters of a dense model, and without observations."""
        self.last_model = IncrementalGP.from_model(dense, self.fitter.noise_variance)
        self._num_seen = 0
        self._kept = self._kept[:0]

    def take_in(self, observations: Observations) -> None:
        """Add a row for each new observation, by the hyperparameters of now.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
        """
        new = observations[self._num_seen :]
        if len(new) > 0:
            noise = self._known_noise(new, self.model.covar_module, self.dense)
            self.model.observe(new.X, new.Y, noise)
        self._num_seen = len(observations)
        self._kept = torch.cat([self._kept, self._kept.new_ones(len(new))])

    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> Model:
        """Return the posterior that the next round would have without pending trials.

        Args:
            observations: Those of the last :meth:`update`, less those dropped since, and new ones.
            keep: Mask of the observations that count, ``n``.
            num_told: Number of outcomes that entered so far.
            generator: Seeds the restarts of a fit.
        """
        self.fitter.check_noise(observations)
        if self.last_model is None or self.fitter.may_change(num_told):
            kept = observations[keep]
            return self._in_raw_units(self.fitter.copy().fit(kept, num_told, generator), kept)
        if not keep.all():
            return self._in_raw_units(self.dense, observations[keep])
        new = observations[self._num_seen :]
        if len(new) == 0:
            # A shallow copy: what it remembers of the rows it is asked about stays its own.
            return copy(self.model)
        noise = self._known_noise(new, self.model.covar_module, self.dense)
        model = self.model.snapshot()
        model.observe(new.X, new.Y, noise)
        return model

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, at once or once there are many without weight.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        gone = ~keep[: self._num_seen]
        if not gone.any():
            return
        kept = self._kept.clone()
        kept[self._kept.nonzero().squeeze(-1)[gone]] = False
        many = 3 * int((~kept).sum()) >= len(kept)
        weight = weights(observations.X[: self._num_seen][gone], t, self.dense)
        # A policy that drops at this very weight rounds it otherwise.
        if many or (weight > self.tol * (1 + TIE_TOLERANCE)).any():
            self.model.drop(kept)
            kept = kept[kept]
        self._kept = kept
        self._num_seen -= int(gone.sum())

    def restart(self) -> None:
        """Forget all observations: those of the next :meth:`update` are new."""
        if self.last_model is not None:
            self.start(self.dense)
