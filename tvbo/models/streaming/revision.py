"""Outcomes that come later than their place in the factor."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

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
    first = int(place.min())
    rows = innovations.store.held
    root = rows.root[:, first:, first:]
    unit = root.new_zeros(len(root), root.shape[-1], len(place))
    unit[:, place - first, torch.arange(len(place), device=place.device)] = 1.0
    Z = torch.linalg.solve_triangular(root, unit, upper=False)
    return torch.linalg.lstsq(Z, rows.gains[:, first:].unsqueeze(-1)).solution.squeeze(-1)
