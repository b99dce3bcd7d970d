"""From observations to a posterior on inducing points, drawn anew in each round."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.models import IncrementalGP
from tvbo.models.nystrom_gp import NystromGP
from tvbo.observations import Observations
from tvbo.optimizers.noise import known_noise
from tvbo.optimizers.open_rows import with_open_rows
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.surrogate import GPSurrogate


class NystromSurrogate:
    r"""Keeps a :class:`tvbo.models.NystromGP` for BKB (Calandriello et al., 2019).

    Whenever there are new observations, each observation, old or new, is drawn into the inducing
    set by itself with probability (Algorithm 1)

    .. math:: p_i = \min(1, \bar q\, \sigma_{t-1}^2(x_i) / \sigma^2),

    the variance being that of the model before them, at the row of the observation: under drift,
    at its own time. The first set is all there is. Repeated rows are merged in the set, which spans
    the same functions with or without them: ``n`` repeats are in it if any of them was drawn.
    Where nothing is drawn at all, the model is the prior until the next round.

    Hyperparameters are those of the dense surrogate, fixed or learned when its ``refit`` says so,
    from the observations that retention kept. After a fit, or where retention dropped something,
    the variances for the next draw are those of the set before under the new hyperparameters,
    less what was dropped.

    A round costs :math:`O(n m^2)` for ``n`` observations and ``m`` inducing points.

    Args:
        dense: Knows the hyperparameters, or learns them.
        qbar: Oversampling :math:`\bar q`; larger sets are more accurate. The theory asks for
            :func:`tvbo.acquisition.bkb_qbar`, the authors' program for 2 to 10.

    Raises:
        ValueError: if ``qbar`` is not above 0 and finite.
    """

    last_model: NystromGP | None

    def __init__(self, dense: GPSurrogate, qbar: float):
        if not 0 < qbar < math.inf:
            raise ValueError(f"Expected qbar > 0 and finite. Got {qbar}.")
        self.dense = dense
        self.qbar = qbar
        self.last_model = None
        # The hyperparameters, without observations.
        self._blank: NystromGP | None = None
        # Of each observation seen: how likely it was to be drawn, and whether it was.
        self._probabilities = torch.empty(0, dtype=torch.float64)
        self._included = torch.empty(0, dtype=torch.bool)
        # Whether the newest model has other hyperparameters, or something that was dropped.
        self._stale = False
        self._num_told = 0

    @property
    def inclusion_probabilities(self) -> Tensor:
        """Of each observation held, the probability with which it was drawn last, ``n``."""
        return self._probabilities

    @property
    def inducing_points(self) -> Tensor:
        """Rows of the newest model's inducing set, ``m x d``; ``0 x d`` before the first."""
        if self.last_model is None:
            return torch.empty(0, self.dense.layout.num_columns, dtype=torch.float64)
        return self.last_model.inducing_points

    def model(self, observations: Observations, num_told: int, generator: Generator) -> NystromGP:
        """As :meth:`GPSurrogate.model`; a draw of inducing points is from ``generator``, too."""
        self.dense.check_noise(observations)
        if self.last_model is None or self.dense.changes(num_told):
            self._blank = self._from_dense(self.dense.model(observations, num_told, generator))
            self._stale = True
        self._num_told = num_told
        has_new = len(observations) > len(self._included)
        if has_new or self._stale:
            observations = self._with_noise(observations)
            if has_new:
                self._draw(observations, generator)
            self.last_model = self._sketch(observations)
            self._stale = False
        return self.last_model

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
        """Retention keeps ``keep`` of the observations: the others leave the inducing set, too."""
        keep = keep[: len(self._included)]
        if not keep.all():
            self._included = self._included[keep]
            self._probabilities = self._probabilities[keep]
            self._stale = True

    @property
    def unit(self) -> float:
        """As in :class:`GPSurrogate`."""
        return self.dense.unit

    @property
    def newest_fit(self) -> dict[str, list[float]] | None:
        """As in :class:`Surrogate`."""
        return self.dense.newest_fit

    def changes(self, num_told: int) -> bool:
        """Whether the next model may have other hyperparameters, or inducing points drawn anew."""
        return num_told != self._num_told or self.dense.changes(num_told)

    def outcome_noise(self, observations: Observations) -> float | None:
        """As :meth:`GPSurrogate.outcome_noise`."""
        return self.dense.outcome_noise(observations)

    def preview(self, observations: Observations) -> Model:
        """A model of any observations, with hyperparameters and inducing points of now."""
        self.dense.check_noise(observations)
        if self.last_model is None:
            return self.dense.preview(observations)
        known = self._with_noise(observations)
        return self._blank.with_data(self.inducing_points, known.X, known.Y, known.Yvar)

    def _draw(self, observations: Observations, generator: Generator) -> None:
        num_seen = len(self._included)
        if num_seen == 0:
            self._probabilities = torch.ones(len(observations), dtype=torch.float64)
            self._included = torch.ones(len(observations), dtype=torch.bool)
            return
        before = self._sketch(observations[:num_seen]) if self._stale else self.last_model
        with torch.no_grad():
            new = before.posterior(observations.X[num_seen:].unsqueeze(-2)).variance.flatten()
        variance = torch.cat([before.observed_variance, new])
        noise = observations.Yvar.squeeze(-1)
        self._probabilities = (self.qbar * variance / noise).clamp_max(1.0)
        uniform = torch.rand(len(variance), dtype=torch.float64, generator=generator)
        self._included = uniform < self._probabilities

    def _sketch(self, observations: Observations) -> NystromGP:
        """The model of the observations seen so far, by those of them that were drawn."""
        inducing_points = self._merged(observations.X[self._included])
        return self._blank.with_data(
            inducing_points, observations.X, observations.Y, observations.Yvar
        )

    def _merged(self, rows: Tensor) -> Tensor:
        """One of each, in order; where the model knows no drift, times make no difference."""
        if len(rows) == 0:
            return rows
        rate = self.dense.last_model.forgetting_rate
        is_static = rate is None or not rate.any()
        seen = rows[:, : self.dense.layout.time_feature] if is_static else rows
        _, group = torch.unique(seen, dim=0, return_inverse=True)
        order = torch.arange(len(rows))
        first = order.new_full((int(group.max()) + 1,), len(rows))
        return rows[first.scatter_reduce(0, group, order, "amin").sort().values]

    def _from_dense(self, dense: SingleTaskGP) -> NystromGP:
        exact = IncrementalGP.from_model(dense, self.dense.noise_variance)
        none = torch.empty(0, self.dense.layout.num_columns, dtype=torch.float64)
        return NystromGP(
            exact.covar_module,
            exact.noise_variance,
            inducing_points=none,
            X=none,
            Y=none[:, :1],
            mean_module=exact.mean_module,
        )

    def _with_noise(self, observations: Observations) -> Observations:
        """With noise variances for all, of the size that the dense model would take."""
        if len(observations) == 0:
            return observations
        noise = known_noise(self.dense, self._blank.covar_module, observations)
        if noise is None:
            noise = self._blank.noise_variance.expand_as(observations.Y)
        return replace(observations, Yvar=noise)
