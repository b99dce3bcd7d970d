"""Posterior on a finite set after changes of the outcomes, without new rows or copies of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.posteriors import Posterior
from torch import Size, Tensor

from tvbo.models.streaming.posterior import Predictions
from tvbo.models.streaming_gp import StreamingGP
from tvbo.rounding import floor_
from tvbo.spaces.observations import Observations


@dataclass(frozen=True)
class Amendments:
    """Changes to the observations of a streaming posterior without a batch.

    Args:
        changes: What to add to outcomes, by number of the observation.
        left_out: Numbers of observations to leave out, none of them among ``changes``.
        new: New observations of rows ``[action | time]``, none before the earliest that the
            posterior can take in.
    """

    changes: Mapping[int, float]
    left_out: Sequence[int]
    new: Observations


@dataclass(frozen=True)
class Sums:
    """Sums over the rows of a streaming posterior of one trial.

    Args:
        mean: Posterior mean of the states less the prior mean as of ``now``, ``1 x N``, or of those
            of some choices alone.
        reduction: What is explained of their covariance for each choice as of ``now``, ``1 x R``.
        now: Time of the newest observation, 1.
    """

    mean: Tensor
    reduction: Tensor
    now: Tensor


def amended(model: StreamingGP, amendments: Amendments, choices: Tensor | None = None) -> Sums:
    r"""Return the sums that a streaming posterior would have after amendments.

    With :math:`L` the Cholesky factor of the outcomes' covariance, :math:`v = L^{-1} k` for their
    covariances :math:`k` with a choice, and :math:`a` the innovations, the mean is
    :math:`v^\top a` and the reduction :math:`v^\top v`. A change :math:`c` of outcomes adds
    :math:`L^{-1} c` to :math:`a`. Without the outcomes at some places, :math:`v` loses its
    projection on the columns of :math:`L^{-1} E` for the unit vectors :math:`E` of these places.

    Only the ``m`` rows from the first place on are touched: ``p`` places cost :math:`O(m^2 p)`, and
    :math:`O(m p)` for each choice. New observations cost as much as in :meth:`StreamingGP.observe`.

    Args:
        model: Model without a batch.
        amendments: What changes. The rows of observations that are named must still be held.
        choices: Positions of the choices that matter; None for all.

    Raises:
        InputDataError: if a new outcome is certain already.
    """
    innovations = model.innovations
    rows = innovations.store.held
    prior = innovations.prior
    changed = torch.tensor([*amendments.changes], dtype=torch.long) - innovations.store.num_evicted
    left_out = (
        torch.tensor([*amendments.left_out], dtype=torch.long) - innovations.store.num_evicted
    )
    touched = [*changed.tolist(), *left_out.tolist()]
    first = min(touched, default=innovations.store.count)
    index, time = (part.unsqueeze(0) for part in model._split(amendments.new.X))
    now = torch.cat([innovations.now, time.flatten()]).max().unsqueeze(0)

    lag = innovations.lag(now)
    mean = prior.select(innovations.mean, choices).unsqueeze(-2)
    mean = prior.advance(mean, lag.unsqueeze(-1)).squeeze(-2)
    reduction = prior.advance_explained(prior.select(innovations.reduction, choices), lag)
    age = now.unsqueeze(-1) - rows.made_at[:, first:]
    V = prior.advance(prior.select(rows.V[:, first:], choices), age)
    innovation = rows.innovation
    root = innovation.new_empty(1, 0, 0) if rows.root is None else rows.root[:, first:, first:]
    if len(changed) > 0:
        change = innovation.new_zeros(1, root.shape[-1], 1)
        change[0, changed - first, 0] = innovation.new_tensor([*amendments.changes.values()])
        shift = torch.linalg.solve_triangular(root, change, upper=False).squeeze(-1)
        innovation = torch.cat([innovation[:, :first], innovation[:, first:] + shift], dim=-1)
        mean = mean + (shift.unsqueeze(-2) @ V).squeeze(-2)
    if len(amendments.new) > 0:
        residual, noise = _outcomes(model, amendments.new)
        cross, own = innovations.factor(rows, index, time, noise)
        predicted = innovations.predicted(index, time, cross, innovation)
        error = (residual - predicted).unsqueeze(-1)
        own_innovation = torch.linalg.solve_triangular(own, error, upper=False).squeeze(-1)
        unexplained = innovations.unexplained(rows, index, time, now, cross)
        unexplained = prior.select(unexplained, choices)
        own_V = torch.linalg.solve_triangular(own, unexplained, upper=False)
        mean = mean + (own_innovation.unsqueeze(-2) @ own_V).squeeze(-2)
        reduction = reduction + prior.explain(own_V)
        if len(left_out) > 0:
            V, innovation = (
                torch.cat([V, own_V], dim=-2),
                torch.cat([innovation, own_innovation], dim=-1),
            )
            above = torch.nn.functional.pad(root, (0, own.shape[-1]))
            root = torch.cat([above, torch.cat([cross[..., first:], own], dim=-1)], dim=-2)
    if len(left_out) > 0:
        unit = torch.zeros_like(root[..., : len(left_out)])
        unit[0, left_out - first, torch.arange(len(left_out))] = 1.0
        basis = torch.linalg.qr(torch.linalg.solve_triangular(root, unit, upper=False)).Q.mT
        told = basis @ V
        mean = mean - ((basis @ innovation[:, first:].unsqueeze(-1)).mT @ told).squeeze(-2)
        reduction = reduction - prior.explain(told)
    return Sums(mean, reduction, now)


def _outcomes(model: StreamingGP, new: Observations) -> tuple[Tensor, Tensor]:
    """Return outcomes less the prior mean, and their noise variances, ``1 x q`` each."""
    residual = (new.Y.squeeze(-1) - model._prior_mean(new.X)).unsqueeze(0)
    noise = model._noise if new.Yvar is None else new.Yvar.squeeze(-1)
    return residual, noise.expand_as(residual)


class StreamPreview(Predictions):
    """The posterior of a :class:`tvbo.models.StreamingGP` after amendments, for single rows.

    It needs only the sums over the rows, neither a copy of the rows nor new ones. A joint posterior
    of several rows needs them: it is that of :meth:`snapshot`.

    Args:
        model: Model without observations, with the hyperparameters of the amended one.
        sums: Sums over the rows after the amendments.
        observations: All observations after the amendments.
    """

    def __init__(self, model: StreamingGP, sums: Sums, observations: Observations):
        super().__init__()
        self.row_index = model.row_index
        self.mean_module = model.mean_module
        self._batch_shape = model.batch_shape
        self.register_buffer("_noise", model._noise)
        self.innovations = model.blank().innovations
        self.innovations.mean, self.innovations.reduction = sums.mean, sums.reduction
        self.innovations.now = sums.now
        self._full = model
        self._observations: Observations | None = observations

    def snapshot(self) -> StreamingGP:
        """Return the whole model, which takes in all observations when it is first asked for."""
        if self._observations is not None:
            each, self._observations = self._observations, None
            if len(each) > 0:
                self._full.observe(each.X, each.Y, each.Yvar)
        return self._full

    def _smooth(
        self, element: Tensor, index: Tensor, time: Tensor, shape: Size
    ) -> tuple[Tensor, Tensor]:
        return self.snapshot()._smooth(element, index, time, shape)

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Rows of the observations that the whole model holds, ``k x (d + 1)``."""
        return self.snapshot().train_inputs

    @property
    def train_targets(self) -> Tensor:
        """Their outcomes, ``k``."""
        return self.snapshot().train_targets

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the posterior of rows.

        Args:
            X: Rows ``[action | time]``, ``... x q x (d + 1)``, no time before :attr:`earliest`.
            output_indices: None or ``[0]``.
            observation_noise: True adds ``noise_variance``; a tensor ``... x q x 1`` is added.
            posterior_transform: As in BoTorch.

        Raises:
            BotorchTensorDimensionError: if the shape does not fit.
            InputDataError: if an action is none of the choices, or a time is not finite or lies
                before :attr:`earliest`.
        """
        given = (X, output_indices, observation_noise, posterior_transform)
        if X.shape[-2] > 1:
            return self.snapshot().posterior(*given)
        return super().posterior(*given)


def predict_without(model: StreamingGP, left_out: Sequence[int], X: Tensor) -> tuple[float, float]:
    """Return mean and variance at one row without some of the observations.

    Args:
        model: Model without a batch.
        left_out: Numbers of the observations to leave out, no two alike.
        X: Row ``[action | time]``, ``1 x (d + 1)``, not before the newest observation.
    """
    index, time = model._split(X)
    none = Observations.empty(X.shape[-1])
    with torch.no_grad():
        sums = amended(model, Amendments({}, left_out, none), index)
        prior, element = model.innovations.prior, model._elements
        # The sums are those of this choice alone.
        alone, lag = torch.zeros_like(index).unsqueeze(0), (time - sums.now).unsqueeze(0)
        mean = prior.read(sums.mean.unsqueeze(-2), alone, lag.unsqueeze(-1))
        mean = mean + model._prior_mean(X)
        before = prior.variances(element, index.unsqueeze(0))
        variance = before - prior.read_explained(sums.reduction, alone, lag, element)
        variance = variance.unsqueeze(-1)
        floor_(variance, before)
    return mean.item(), variance.item()
