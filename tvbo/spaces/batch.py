"""Batches of actions, chosen one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor


class _Beside(AcquisitionFunction):
    """An acquisition function of one action more than those that are chosen.

    Args:
        acq_function: A function of rows ``b x q x d'``.
        chosen: The rows chosen, ``(q - 1) x d'``.
    """

    def __init__(self, acq_function: AcquisitionFunction, chosen: Tensor):
        super().__init__(acq_function.model)
        self._parts = acq_function, chosen

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, of the batches with each of the rows ``b x 1 x d'``."""
        acq_function, chosen = self._parts
        values: Tensor = acq_function(torch.cat([chosen.expand(len(X), -1, -1), X], dim=-2))
        return values


def one_after_another(
    maximize: Callable[[AcquisitionFunction], Tensor],
    acq_function: AcquisitionFunction,
    rows: Callable[[Tensor], Tensor],
    q: int,
) -> Tensor:
    """Return a batch, ``q x d``, of which each action is the best beside those before it.

    Args:
        maximize: Returns the action, ``1 x d``, that maximizes a function of rows ``b x 1 x d'``.
        acq_function: A function of rows ``b x q x d'``.
        rows: Returns actions as rows at the present time and context.
        q: Number of actions.
    """
    chosen = maximize(acq_function)
    while len(chosen) < q:
        beside = _Beside(acq_function, rows(chosen))
        chosen = torch.cat([chosen, maximize(beside)])
    return chosen
