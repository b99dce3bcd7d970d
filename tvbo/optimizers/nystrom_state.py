"""The posterior on inducing points that are drawn anew in each round."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import cast

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import IncrementalGP
from tvbo.models.nystrom_gp import NystromGP
from tvbo.optimizers.posterior_state import RowPosteriorState
from tvbo.spaces.observations import Observations, provided


class NystromState(RowPosteriorState):
    r"""Keep a :class:`tvbo.models.NystromGP` for BKB (Calandriello et al., 2019).

    Whenever there are new observations, each observation, old or new, is drawn into the inducing
    set independently with probability (Algorithm 1)

    .. math:: p_i = \min(1, \bar q\, \sigma_{t-1}^2(x_i) / \sigma^2),

    where the variance is that of the model before the new observations, at the row and the time of
    the observation. The first set is all observations. Repeated rows are merged in the set, which
    spans the same functions with or without them: ``n`` repeats are in it if any of them was drawn.
    Where nothing is drawn at all, the model is the prior until the next round.

    Hyperparameters are learned from the observations that retention kept. After a fit, or where
    retention discarded something, the variances for the next draw are those of the last set under
    the new hyperparameters, less what was discarded.

    A round costs :math:`O(n m^2)` for ``n`` observations and ``m`` inducing points.

    Args:
        fitter: Holds or learns the hyperparameters.
        qbar: Oversampling :math:`\bar q`; larger sets are more accurate. The theory asks for
            :func:`tvbo.acquisition.bkb_qbar`, the authors' program for 2 to 10.

    Raises:
        ValueError: if ``qbar`` is not above 0 and finite.
    """

    last_model: NystromGP | None

    def __init__(self, fitter: ModelFitter, qbar: float):
        if not 0 < qbar < math.inf:
            raise ValueError(f"Expected qbar > 0 and finite. Got {qbar}.")
        super().__init__(fitter)
        self.qbar = qbar
        # The hyperparameters, without observations.
        self._blank: NystromGP | None = None
        # Probability with which each observation was drawn last, and whether it was.
        self._probabilities = torch.empty(0, dtype=torch.float64)
        self._included = torch.empty(0, dtype=torch.bool)
        # Whether the newest model has other hyperparameters, or something that was dropped.
        self._stale = False
        self._num_told = 0

    @property
    def model(self) -> NystromGP:
        """The model of the observations that were taken in.

        Raises:
            RuntimeError: before the first update.
        """
        return provided(self.last_model)

    @property
    def inclusion_probabilities(self) -> Tensor:
        """Probability with which each observation held was drawn last, ``n``."""
        return self._probabilities

    @property
    def inducing_points(self) -> Tensor:
        """Rows of the newest model's inducing set, ``m x d``; ``0 x d`` before the first."""
        if self.last_model is None:
            return torch.empty(0, self.fitter.layout.num_columns, dtype=torch.float64)
        return self.last_model.inducing_points

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due, and draw inducing points if there is news.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Source of the draw; seeds the restarts of a fit, too.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        self.fitter.check_noise(observations)
        if self.last_model is None or self.fitter.may_change(num_told):
            self._blank = self._without_data(self.fitter.fit(observations, num_told, generator))
            self._stale = True
        self._num_told = num_told
        has_new = len(observations) > len(self._included)
        if has_new or self._stale:
            observations = self._with_noise(observations)
            if has_new:
                self._draw(observations, generator)
            self.last_model = self._sketch(observations)
            self._stale = False

    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> Model:
        """Return the posterior that the next round would have without pending trials.

        Where there are no new outcomes, but ``keep`` leaves some out, it has the inducing points of
        now.

        Args:
            observations: Those of the last :meth:`update`, less those dropped since, and new ones.
            keep: Mask of the observations that count, ``n``.
            num_told: Number of outcomes that entered so far.
            generator: Source of the draw; seeds the restarts of a fit, too.
        """
        kept = observations[keep]
        changes = num_told != self._num_told or self.fitter.may_change(num_told)
        if self.last_model is not None and not changes and not keep.all():
            known = self._with_noise(kept)
            blank = provided(self._blank)
            return blank.with_data(self.inducing_points, known.X, known.Y, known.Yvar)
        # A shallow copy is enough: an update rebinds whatever it changes.
        new = copy(self)
        new.fitter = self.fitter.copy()
        new._forget(keep)
        new.update(kept, num_told, generator)
        return new.model

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, which leave the inducing set, too.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        self._forget(keep)

    def restart(self) -> None:
        """Forget all observations, so that the first set of the next is all of them."""
        self._forget(torch.zeros_like(self._included))

    def _forget(self, keep: Tensor) -> None:
        keep = keep[: len(self._included)]
        if not keep.all():
            self._included = self._included[keep]
            self._probabilities = self._probabilities[keep]
            self._stale = True

    def _draw(self, observations: Observations, generator: Generator) -> None:
        """Draw anew which observations, with noise variances, are inducing points."""
        num_seen = len(self._included)
        if num_seen == 0:
            self._probabilities = torch.ones(len(observations), dtype=torch.float64)
            self._included = torch.ones(len(observations), dtype=torch.bool)
            return
        before = self._sketch(observations[:num_seen]) if self._stale else self.model
        with torch.no_grad():
            posterior = before.posterior(observations.X[num_seen:].unsqueeze(-2))
            # BoTorch's base class does not declare it; all posteriors of this model have one.
            new = cast(GPyTorchPosterior, posterior).variance.flatten()
        variance = torch.cat([before.observed_variance, new])
        noise = cast(Tensor, observations.Yvar).squeeze(-1)
        self._probabilities = (self.qbar * variance / noise).clamp_max(1.0)
        uniform = torch.rand(len(variance), dtype=torch.float64, generator=generator)
        self._included = uniform < self._probabilities

    def _sketch(self, observations: Observations) -> NystromGP:
        """Return the model of the observations seen so far, by those of them that were drawn."""
        inducing_points = self._merged(observations.X[self._included])
        return provided(self._blank).with_data(
            inducing_points, observations.X, observations.Y, observations.Yvar
        )

    def _merged(self, rows: Tensor) -> Tensor:
        """Return each distinct row once, in order; without drift, times make no difference."""
        if len(rows) == 0:
            return rows
        seen = rows[:, : self.fitter.layout.time_feature] if self.dense.is_static else rows
        _, group = torch.unique(seen, dim=0, return_inverse=True)
        order = torch.arange(len(rows))
        first = order.new_full((int(group.max()) + 1,), len(rows))
        return rows[first.scatter_reduce(0, group, order, "amin").sort().values]

    def _without_data(self, dense: DenseGP) -> NystromGP:
        """Return a model with the hyperparameters of a dense one."""
        exact = IncrementalGP.from_model(dense, self.fitter.noise_variance)
        none = torch.empty(0, self.fitter.layout.num_columns, dtype=torch.float64)
        return NystromGP(
            exact.covar_module,
            exact.noise_variance,
            inducing_points=none,
            X=none,
            Y=none[:, :1],
            mean_module=exact.mean_module,
        )

    def _with_noise(self, observations: Observations) -> Observations:
        """Return observations with noise variances, at least the least that a model takes."""
        if len(observations) == 0:
            return observations
        blank = provided(self._blank)
        noise = self._known_noise(observations, blank.covar_module, self.dense)
        if noise is None:
            noise = blank.noise_variance.expand_as(observations.Y)
        return replace(observations, Yvar=noise)
