"""Outcomes that come later than their place in the factor."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.models.scale import floor_
from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.predictions import Predictions
from tvbo.validation import check_finite


class Revisions(Predictions):
    """A streaming posterior whose observations can be given other outcomes.

    Variances do not depend on outcomes. So an action may enter when it is chosen, with a stand-in
    for its outcome, and only the outcome be revised when it comes: its row, the costly part, stays.
    Observations are numbered 0, 1, ... since the last reset, in the order in which they were taken
    in; those of one call in the order of time.
    """

    @property
    def num_observed(self) -> int:
        """Observations taken in since the last reset, in each trial."""
        store = self.innovations.store
        return store.gone + store.count

    def holds(self, number: Tensor) -> Tensor:
        """Whether the rows of observations, ``q`` numbers, are still held."""
        return (number >= self.innovations.store.gone) & (number < self.num_observed)

    def revise(self, number: Tensor, change: Tensor) -> None:
        """Let observations have had other outcomes.

        Costs :math:`O(m^2 + m n)` for the ``m`` rows from the oldest one revised on.

        Args:
            number: Which observations, ``q`` numbers, no two alike.
            change: What to add to their outcomes, ``batch_shape x q``.

        Raises:
            BotorchTensorDimensionError: if the shapes do not agree.
            InputDataError: if a change is not finite, or an observation is no longer held by
                itself, or its row cannot be solved for (``max_lateness=0``). Nothing changes then.
        """
        if change.shape != (*self.batch_shape, len(number)):
            raise BotorchTensorDimensionError(
                f"Expected change of shape {(*self.batch_shape, len(number))}. "
                f"Got change.shape={tuple(change.shape)}."
            )
        check_finite("change", change)
        if len(number) == 0:
            return
        place = self._place(number)
        shift(self.innovations, place, change.to(self._rate).reshape(-1, len(number)))

    def surprise(self, number: Tensor) -> Tensor:
        """By how much the outcomes of observations exceed what all others foretell of them.

        Args:
            number: Which observations, ``q`` numbers, no two alike.

        Returns:
            ``batch_shape x q``: outcome less posterior mean given the observations not named.

        Raises:
            InputDataError: as :meth:`revise`.
        """
        place = self._place(number)
        if len(number) == 0:
            return self._rate.new_empty(*self.batch_shape, 0)
        return surprise(self.innovations, place).reshape(*self.batch_shape, len(number))

    def predict_without(self, number: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances given all observations but some.

        Costs what :meth:`surprise` costs; no row is made again.

        Args:
            number: Which observations to leave out, ``p`` numbers, no two alike.
            X: Rows ``[action | time]``, ``q x (d + 1)``; no time before the newest observation.

        Returns:
            Means and variances, ``batch_shape x q`` each.

        Raises:
            BotorchTensorDimensionError: if the shape of ``X`` does not fit.
            InputDataError: as :meth:`revise`, or if an action is none of the choices, or a time is
                not finite or lies before the newest observation.
        """
        place = self._place(number)
        index, time = self._split(X)
        shape = (len(self._trials), len(index))
        self._check_time(time.expand(shape), self.innovations.now.unsqueeze(-1))
        trial = self._trials.unsqueeze(-1).expand(shape).reshape(-1)
        at = index.expand(shape).reshape(-1, 1)
        with torch.no_grad():
            mean, covar = self.innovations.predict(trial, at, time.expand(shape).reshape(-1, 1))
            mean, covar = mean.reshape(shape), covar.reshape(*shape, 1, 1)
            if len(number) > 0:
                told, explained = told_by(self.innovations, place, index, time)
                mean, covar = mean - told, covar + explained[..., None, None]
            prior = self.innovations.covariance.variances(trial, at)
            floor_(covar, prior.reshape(*shape, 1))
        shape = (*self._batch_shape, len(index))
        return mean.reshape(shape) + self._prior_mean(X), covar.reshape(shape)

    def _place(self, number: Tensor) -> Tensor:
        if self.innovations.store.root is None:
            raise InputDataError(
                "Expected a model that holds what late outcomes need. Got max_lateness=0."
            )
        known = self.holds(number)
        if not known.all():
            raise InputDataError(
                f"Expected observations {self.innovations.store.gone} to {self.num_observed - 1}, "
                f"which are held. Got {number[~known].tolist()}."
            )
        return number - self.innovations.store.gone


def shift(innovations: Innovations, place: Tensor, change: Tensor) -> None:
    """Add to the outcomes of the rows at ``q`` places; ``change`` is ``b x q``."""
    first = int(place.min())
    rows = innovations.store.held
    outcomes = change.new_zeros(len(change), innovations.store.count - first)
    outcomes.index_add_(-1, place - first, change)
    gains = torch.linalg.solve_triangular(
        rows.root[:, first:, first:], outcomes.unsqueeze(-1), upper=False
    ).squeeze(-1)
    rows.gains[:, first:] += gains
    fade = innovations.base.decay(innovations.now.unsqueeze(-1) - rows.made_at[:, first:])
    innovations.mean += ((gains * fade).unsqueeze(-2) @ rows.V[:, first:]).squeeze(-2)


def surprise(innovations: Innovations, place: Tensor) -> Tensor:
    r"""Outcomes at ``q`` places less what all other rows foretell of them, ``b x q``.

    With :math:`S = L L^\top` the covariance of the outcomes from the first place on given those
    before, :math:`a` their innovations and :math:`Z = L^{-1} E` for the unit vectors of the places,
    that is :math:`(Z^\top Z)^{-1} Z^\top a`: a least squares problem.
    """
    first, Z = _directions(innovations, place)
    gains = innovations.store.held.gains[:, first:]
    return torch.linalg.lstsq(Z, gains.unsqueeze(-1)).solution.squeeze(-1)


def told_by(
    innovations: Innovations, place: Tensor, index: Tensor, time: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return what the rows at some places add to means and take from variances.

    With :math:`v = L^{-1} k` for the covariances :math:`k` of a choice with the outcomes, of which
    :math:`a` are the innovations, the mean is :math:`v^\top a` and the reduction of the variance
    :math:`v^\top v`. Without the places, :math:`v` loses its projection on the columns of
    :math:`Z = L^{-1} E`.

    Args:
        innovations: Of ``b`` trials.
        place: Places of the rows, ``p``.
        index: Positions of the choices, ``q``.
        time: Times at or after the newest, ``q``.

    Returns:
        Shares of means and of reductions of the variance, ``b x q`` each.
    """
    first, Z = _directions(innovations, place)
    rows = innovations.store.held
    fade = innovations.base.decay(innovations.now.unsqueeze(-1) - rows.made_at[:, first:])
    V = rows.V[:, first:, index] * fade.unsqueeze(-1)
    basis = torch.linalg.qr(Z).Q.mT
    since = innovations.since_newest(innovations._trials, time.expand(len(V), -1))
    told = (basis @ V) * since.unsqueeze(-2)
    gains = basis @ rows.gains[:, first:].unsqueeze(-1)
    return (told * gains).sum(dim=-2), told.square().sum(dim=-2)


def _directions(innovations: Innovations, place: Tensor) -> tuple[int, Tensor]:
    """Return the first of ``p`` places, and ``Z``, ``b x m x p``, for the rows from there on."""
    first = int(place.min())
    root = innovations.store.held.root[:, first:, first:]
    unit = root.new_zeros(len(root), root.shape[-1], len(place))
    unit[:, place - first, torch.arange(len(place), device=place.device)] = 1.0
    return first, torch.linalg.solve_triangular(root, unit, upper=False)
