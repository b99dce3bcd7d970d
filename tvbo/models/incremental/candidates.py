"""What is known of the rows asked about last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tvbo.models.incremental.factor import enough_room

FEW = 64
"""So many rows at most are looked for one by one among the candidates."""


@dataclass(frozen=True, eq=False)
class Candidates:
    r"""Rows, and how they depend on the observations seen so far.

    Args:
        rows: ``M x d``.
        store: Memory whose first ``count`` rows are ``V``. What comes after is written by whoever
            learns next; what is held never changes.
        count: Number of observations seen, ``n``.
        mean: Posterior mean less the prior mean, ``M``.
        reduction: Prior variance less posterior variance, ``M``.
        prior: Prior variance, ``M``; None if nobody asked for it.
    """

    rows: Tensor
    store: Tensor
    count: int
    mean: Tensor
    reduction: Tensor
    prior: Tensor | None = None

    @classmethod
    def unseen(cls, rows: Tensor, prior: Tensor | None = None) -> Candidates:
        """Before any observation."""
        zero = rows.new_zeros(len(rows))
        return cls(rows, rows.new_empty(0, len(rows)), 0, zero, zero, prior)

    @property
    def V(self) -> Tensor:
        r"""Covariances with the innovations, :math:`L^{-1} k(X, \text{rows})`, ``n x M``."""
        return self.store[: self.count]

    def learn(self, new: Tensor, gains: Tensor) -> Candidates:
        """With more observations.

        Args:
            new: What they add to ``V``, ``q x M``.
            gains: Their innovations, ``q``.
        """
        return Candidates(
            self.rows,
            self._with(new),
            self.count + len(new),
            self.mean + gains @ new,
            self.reduction + new.square().sum(dim=0),
            self.prior,
        )

    def _with(self, new: Tensor) -> Tensor:
        """Memory whose first rows are ``V`` and the new ones."""
        if self.count == 0:
            return new
        if new.requires_grad:
            return torch.cat([self.V, new])
        needed = self.count + len(new)
        store = self.store
        foreign = store.is_inference() and not torch.is_inference_mode_enabled()
        if needed > len(store) or foreign:
            store = store.new_empty(enough_room(len(store), needed), store.shape[-1])
            store[: self.count] = self.V
        store[self.count : needed] = new
        return store

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
        return Candidates(
            rows,
            self.V[:, place],
            self.count,
            self.mean[place],
            self.reduction[place],
            None if self.prior is None else self.prior[place],
        )

    def state(self) -> dict[str, Tensor | int | None]:
        """The arguments that make it, on the CPU and without spare memory, for ``state_dict``."""
        return {
            "rows": self.rows.cpu().clone(),
            "store": self.V.cpu().clone(),
            "count": self.count,
            "mean": self.mean.cpu().clone(),
            "reduction": self.reduction.cpu().clone(),
            "prior": None if self.prior is None else self.prior.cpu().clone(),
        }

    def moved(self, fn: Callable[[Tensor], Tensor]) -> Candidates:
        """On another device."""
        return Candidates(
            fn(self.rows),
            fn(self.store),
            self.count,
            fn(self.mean),
            fn(self.reduction),
            None if self.prior is None else fn(self.prior),
        )
