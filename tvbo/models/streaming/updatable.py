"""A streaming posterior that takes in observations."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.posterior import Predictions
from tvbo.spaces.observations import check_finite

BLOCK = 256
"""Observations processed at once: a Cholesky factorization of this size costs little."""


class UpdatablePosterior(Predictions):
    """A streaming posterior that takes in observations."""

    eviction_policy: EvictionPolicy

    def observe(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> None:
        """Add observations.

        Args:
            X: Rows ``[action | time]``, ``batch_shape x q x (d + 1)``, or ``q x (d + 1)`` for the
                same rows in every batch element; times in any order.
            Y: Outcomes, ``batch_shape x q x 1``.
            Yvar: Their noise variances, ``batch_shape x q x 1``; None for ``noise_variance``.

        Raises:
            BotorchTensorDimensionError: if shapes do not agree.
            InputDataError: if a value is not finite, an action is none of the choices, ``Yvar`` is
                negative, an observation is later than the rows held allow, or the predictive
                variance of an outcome is numerically zero. Nothing is changed then.
        """
        index, time = self._split(X)
        shape = (*self._batch_shape, index.shape[-1])
        for name, value in (("Y", Y), ("Yvar", Yvar)):
            if value is not None and value.shape != (*shape, 1):
                raise BotorchTensorDimensionError(
                    f"Expected {name} of shape batch_shape x q x 1 = {(*shape, 1)}. "
                    f"Got {name}.shape={tuple(value.shape)}."
                )
        if shape[-1] == 0:
            return
        try:
            index, time = (x.expand(shape).reshape(-1, shape[-1]) for x in (index, time))
        except RuntimeError as error:
            raise BotorchTensorDimensionError(
                f"Expected X of shape batch_shape x q x {self.row_index.dim + 1} with batch_shape="
                f"{tuple(self._batch_shape)}. Got X.shape={tuple(X.shape)}."
            ) from error
        check_finite("Y", Y)
        residual = Y.to(self._noise).squeeze(-1) - self._prior_mean(X)
        residual = residual.reshape(-1, shape[-1])
        noise = self._noise.unsqueeze(-1)
        if Yvar is not None:
            check_finite("Yvar", Yvar)
            if (Yvar < 0).any():
                raise InputDataError(f"Expected Yvar >= 0. Got {Yvar.min().item()}.")
            noise = Yvar.to(self._noise).reshape(-1, shape[-1])
        parts = [index, time, residual, noise.expand_as(time)]
        if shape[-1] > 1:
            order = time.argsort(dim=-1, stable=True)
            parts = [x.gather(-1, order) for x in parts]
        block = min(BLOCK, self.eviction_policy.max_rows or BLOCK)
        blocks = list(zip(*(x.split(block, dim=-1) for x in parts), strict=True))
        before = self.innovations.take(self._elements) if len(blocks) > 1 else self.innovations
        try:
            with torch.no_grad():
                for each in blocks:
                    self.innovations.observe(*each)
        except InputDataError:
            self.innovations = before
            raise
