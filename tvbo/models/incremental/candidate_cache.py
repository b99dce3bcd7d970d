"""A cache of the posterior at the rows that were last predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tvbo.models.incremental.growing_cholesky import grown_capacity

MAX_LOOKUPS = 64
"""Maximum number of rows that are looked up one by one among the candidates."""


@dataclass(frozen=True, eq=False)
class CandidateCache:
    r"""Rows, and how the function there depends on the first observations.

    Args:
        rows: ``M x d``.
        store: Buffer whose first ``count`` rows are ``V``. Rows after these may be written by
            :meth:`with_observations`; the first ones never change.
        count: Number of observations taken into account, ``n``.
        mean: Posterior mean less the prior mean, ``M``.
        reduction: Prior variance less posterior variance, ``M``.
        prior: Prior variance, ``M``; None if it was not computed.
    """

    rows: Tensor
    store: Tensor
    count: int
    mean: Tensor
    reduction: Tensor
    prior: Tensor | None = None

    @classmethod
    def without_observations(cls, rows: Tensor, prior: Tensor | None = None) -> CandidateCache:
        """Build the cache of rows before any observation.

        Args:
            rows: ``M x d``.
            prior: Prior variance, ``M``, or None.
        """
        zero = rows.new_zeros(len(rows))
        return cls(rows, rows.new_empty(0, len(rows)), 0, zero, zero, prior)

    @property
    def V(self) -> Tensor:
        r"""Covariances with the innovations, :math:`L^{-1} k(X, \text{rows})`, ``n x M``."""
        return self.store[: self.count]

    def with_observations(self, new: Tensor, innovations: Tensor) -> CandidateCache:
        """Return the cache with more observations taken into account.

        Args:
            new: The rows that they add to ``V``, ``q x M``.
            innovations: Values of their innovations, ``q``.
        """
        return CandidateCache(
            self.rows,
            self._extended_store(new),
            self.count + len(new),
            self.mean + innovations @ new,
            self.reduction + new.square().sum(dim=0),
            self.prior,
        )

    def _extended_store(self, new: Tensor) -> Tensor:
        """Return a buffer whose first rows are ``V`` and the new ones."""
        if self.count == 0:
            return new
        if new.requires_grad:
            return torch.cat([self.V, new])
        needed = self.count + len(new)
        store = self.store
        # Tensors made in inference mode cannot be written outside of it.
        readonly = store.is_inference() and not torch.is_inference_mode_enabled()
        if needed > len(store) or readonly:
            store = store.new_empty(grown_capacity(len(store), needed), store.shape[-1])
            store[: self.count] = self.V
        store[self.count : needed] = new
        return store

    def subset(self, rows: Tensor) -> CandidateCache | None:
        """Return the cache of some of the rows, in any order; None unless all are found.

        More than :data:`MAX_LOOKUPS` rows are only found if they are all rows, in this order.
        """
        if torch.equal(rows, self.rows):
            return self
        if len(rows) > MAX_LOOKUPS or rows.shape[-1] != self.rows.shape[-1]:
            return None
        same = (rows.unsqueeze(1) == self.rows).all(dim=-1)
        if not same.any(dim=-1).all():
            return None
        index = same.to(torch.uint8).argmax(dim=-1)
        return CandidateCache(
            rows,
            self.V[:, index],
            self.count,
            self.mean[index],
            self.reduction[index],
            None if self.prior is None else self.prior[index],
        )

    def state(self) -> dict[str, Tensor | int | None]:
        """Return the constructor's arguments, copied to the CPU, for ``state_dict``."""
        return {
            "rows": self.rows.cpu().clone(),
            "store": self.V.cpu().clone(),
            "count": self.count,
            "mean": self.mean.cpu().clone(),
            "reduction": self.reduction.cpu().clone(),
            "prior": None if self.prior is None else self.prior.cpu().clone(),
        }

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> CandidateCache:
        """Return the cache with ``fn`` applied to each tensor, such as a move to a device."""
        return CandidateCache(
            fn(self.rows),
            fn(self.store),
            self.count,
            fn(self.mean),
            fn(self.reduction),
            None if self.prior is None else fn(self.prior),
        )
