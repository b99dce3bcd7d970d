"""Observations whose outcomes are changed after they were taken in."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.models.streaming.innovations import Innovations
from tvbo.models.streaming.updatable import UpdatablePosterior
from tvbo.spaces.observations import check_finite


class Revisions(UpdatablePosterior):
    """A streaming posterior in which the outcomes of observations can be changed.

    Variances do not depend on outcomes. So an action may be observed when it is chosen, with a
    substitute for its outcome, and only the outcome be revised when it arrives: the row, which is
    the expensive part, stays. Observations are numbered 0, 1, ... since the last reset, in the
    order in which they were taken in; those of one call in the order of time.
    """

    @property
    def num_observed(self) -> int:
        """Number of observations since the last reset, in each batch element."""
        store = self.innovations.store
        return store.num_evicted + store.count

    def holds(self, number: Tensor) -> Tensor:
        """Return whether the rows of observations, ``q`` numbers, are still held."""
        return (number >= self.innovations.store.num_evicted) & (number < self.num_observed)

    def revise(self, number: Tensor, change: Tensor) -> None:
        """Change the outcomes of observations.

        It costs :math:`O(m^2 + m n)` for the ``m`` rows from the oldest revised one on.

        Args:
            number: Numbers of the observations, ``q``, without duplicates.
            change: What to add to their outcomes, ``batch_shape x q``.

        Raises:
            BotorchTensorDimensionError: if the shapes do not agree.
            InputDataError: if a change is not finite, the row of an observation is no longer held,
                or the Cholesky factor is not kept (``max_lateness=0``). Nothing is changed then.
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
        _add_to_outcomes(self.innovations, place, change.to(self._noise).reshape(-1, len(number)))

    def leave_out_residual(self, number: Tensor) -> Tensor:
        """Return outcomes less their posterior means given all other observations.

        Args:
            number: Numbers of the observations to leave out, ``q``, without duplicates.

        Returns:
            ``batch_shape x q``.

        Raises:
            InputDataError: if the row of an observation is no longer held, or the Cholesky factor
                is not kept (``max_lateness=0``).
        """
        place = self._place(number)
        if len(number) == 0:
            return self._noise.new_empty(*self.batch_shape, 0)
        residual = _leave_out_residual(self.innovations, place)
        return residual.reshape(*self.batch_shape, len(number))

    def _place(self, number: Tensor) -> Tensor:
        """Return the positions of observations among the rows held."""
        store = self.innovations.store
        _ = store.held.factor  # raises where the factor is not kept
        known = self.holds(number)
        if not known.all():
            raise InputDataError(
                f"Expected observations {store.num_evicted} to {self.num_observed - 1}, "
                f"which are held. Got {number[~known].tolist()}."
            )
        return number - store.num_evicted


def _add_to_outcomes(innovations: Innovations, place: Tensor, change: Tensor) -> None:
    """Add ``change``, ``b x q``, to the outcomes of the rows at ``q`` positions."""
    first = int(place.min())
    rows = innovations.store.held
    outcomes = change.new_zeros(len(change), innovations.store.count - first)
    outcomes.index_add_(-1, place - first, change)
    innovation = torch.linalg.solve_triangular(
        rows.factor[:, first:, first:], outcomes.unsqueeze(-1), upper=False
    ).squeeze(-1)
    rows.innovation[:, first:] += innovation
    lag = innovations.now.unsqueeze(-1) - rows.made_at[:, first:]
    mean, weights = innovations.mean.unsqueeze(-2), innovation.unsqueeze(-2)
    mean = innovations.prior.combine(mean, weights, rows.V[:, first:], lag)
    innovations.mean = mean.squeeze(-2)


def _leave_out_residual(innovations: Innovations, place: Tensor) -> Tensor:
    r"""Return outcomes at ``q`` positions less their means given all other rows, ``b x q``.

    With :math:`S = L L^\top` the covariance of the outcomes from the first position on given those
    before, :math:`a` their innovations and :math:`Z = L^{-1} E` for the unit vectors of the
    positions, the residual is :math:`(Z^\top Z)^{-1} Z^\top a`: a least squares problem.
    """
    first = int(place.min())
    rows = innovations.store.held
    root = rows.factor[:, first:, first:]
    unit = root.new_zeros(len(root), root.shape[-1], len(place))
    unit[:, place - first, torch.arange(len(place), device=place.device)] = 1.0
    Z = torch.linalg.solve_triangular(root, unit, upper=False)
    solution: Tensor = torch.linalg.lstsq(Z, rows.innovation[:, first:].unsqueeze(-1)).solution
    return solution.squeeze(-1)
