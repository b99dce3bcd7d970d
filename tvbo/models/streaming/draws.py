"""Draws of the whole function from a streaming posterior."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Generator, Tensor

from tvbo.models.joint_draw import joint_draw
from tvbo.models.streaming.paths import covariance_modes, draw
from tvbo.models.streaming.posterior import Predictions
from tvbo.models.streaming.prior import ChoiceCovariance


class Draws(Predictions):
    """A streaming posterior from which functions can be drawn, jointly over all choices."""

    _modes: list[tuple[Tensor, Tensor]] | None = None

    def covers(self, rows: Tensor) -> bool:
        """Return whether rows ``n x (d + 1)`` are all choices, in their order, at one time."""
        return (
            len(self._batch_shape) == 0
            and rows.shape == (len(self.choices), self.row_index.dim + 1)
            and bool((rows[:, -1] == rows[0, -1]).all())
            and torch.equal(rows[:, :-1], self.choices)
        )

    def draw(self, t: float, generator: Generator) -> Tensor:
        """Draw one function from the joint posterior over all choices at one time.

        A draw lacks at most 1e-13 of the prior variance. It costs as much as an observation, and
        once the factorization of the prior covariance. Where rows with weight were merged or
        dropped, it costs :math:`O(n^3)`, because their observations are no longer known singly.

        Args:
            t: Time of the draw, not before the newest observation.
            generator: Source of randomness.

        Returns:
            ``n`` values.

        Raises:
            UnsupportedError: if the model has a batch.
            InputDataError: if ``t`` is not finite or lies before the newest observation.
        """
        if len(self._batch_shape) > 0:
            raise UnsupportedError(
                f"Expected a model without a batch. Got batch_shape={tuple(self._batch_shape)}."
            )
        self._check_time(torch.as_tensor(t, dtype=torch.float64), self.now)
        if self._modes is None or self._modes[0][0].device != self._noise.device:
            found: dict[ChoiceCovariance, tuple[Tensor, Tensor]] = {}
            for part in self.innovations.prior.parts():
                if part.covariance not in found:
                    found[part.covariance] = covariance_modes(part.covariance)
            self._modes = [found[p.covariance] for p in self.innovations.prior.parts()]
        rows = torch.cat([self.choices, self.choices.new_full((len(self.choices), 1), t)], dim=-1)
        drawn = draw(self.innovations, self._modes, t, generator)
        if drawn is None:
            return joint_draw(self.posterior(rows), generator)[0]
        return drawn + self._prior_mean(rows)
