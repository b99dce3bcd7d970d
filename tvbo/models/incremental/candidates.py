"""What is known of the rows asked about last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 64
"""So many rows at most are looked for one by one among the candidates."""


@dataclass(frozen=True, eq=False)
class Candidates:
    r"""Rows, and how they depend on the observations seen so far.

    Args:
        rows: ``M x d``.
        V: Covariances with the innovations, :math:`L^{-1} k(X, \text{rows})`, ``n x M``.
        mean: Posterior mean less the prior mean, ``M``.
        reduction: Prior variance less posterior variance, ``M``.
    """

    rows: Tensor
    V: Tensor
    mean: Tensor
    reduction: Tensor

    @classmethod
    def unseen(cls, rows: Tensor) -> Candidates:
        """Before any observation."""
        zero = rows.new_zeros(len(rows))
        return cls(rows, rows.new_empty(0, len(rows)), zero, zero)

    def learn(self, V: Tensor, gains: Tensor) -> Candidates:
        """With more observations.

        Args:
            V: ``n x M``, whose first rows are those known already.
            gains: Innovations of all observations, ``n``.
        """
        new, gains = V[len(self.V) :], gains[len(self.V) :]
        return Candidates(
            self.rows, V, self.mean + gains @ new, self.reduction + new.square().sum(dim=0)
        )

    def among(self, rows: Tensor) -> Candidates | None:
        """The same of some of them, in any order; None unless all rows are among these.

        More than a few rows are only found if they are these rows, in this order.
        """
        if torch.equal(rows, self.rows):
            return self
        if len(rows) > FEW or rows.shape[-1] != self.rows.shape[-1]:
            return None
        same = (rows.unsqueeze(1) == self.rows).all(dim=-1)
        if not same.any(dim=-1).all():
            return None
        place = same.to(torch.uint8).argmax(dim=-1)
        return Candidates(rows, self.V[:, place], self.mean[place], self.reduction[place])

    def moved(self, fn: Callable[[Tensor], Tensor]) -> Candidates:
        """On another device."""
        return Candidates(fn(self.rows), fn(self.V), fn(self.mean), fn(self.reduction))
