"""The prior of a function with several numbers of state for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import cast

import torch
from torch import Tensor
from torch.nn import ModuleList

from tvbo.models.streaming.component import Component
from tvbo.models.streaming.prior import MarkovPrior, Part

MANY_SUMS = 16
"""Number of sums of rows from which on they are one product of matrices."""

CACHED = 2**18
"""Entries of rows that fit into the caches of a processor (2 MB)."""

LARGE = 2**24
"""Entries of weights up to which they are computed at once (128 MB)."""


class StatePrior(MarkovPrior):
    r"""A sum of products of kernels over choices and Markov processes in time.

    Each choice has a state of ``S`` numbers, those of all components together; the function is
    their product with a vector, and the state after a lag is a matrix of blocks, one for each
    component, times the state, plus noise.

    Args:
        components: The products.
    """

    observation: Tensor

    def __init__(self, components: Sequence[Component]):
        super().__init__()
        self.components = ModuleList(components)
        self.num_choices = components[0].covariance.diagonal.shape[-1]
        observation = torch.cat([each.observation for each in components], dim=-1)
        self.register_buffer("observation", observation, persistent=False)
        self.num_states = observation.shape[-1]

    def take(self, element: Tensor) -> StatePrior:
        """Return the prior of some batch elements."""
        new = copy(super().take(element))
        new.components = ModuleList(each.take(element) for each in self.products)
        return new

    @property
    def products(self) -> list[Component]:
        """The components."""
        return [cast(Component, each) for each in self.components]

    @property
    def forgetting_rate(self) -> None:
        """None."""
        return None

    @property
    def is_static(self) -> bool:
        """Whether time makes no difference."""
        return all(each.kernel.is_static for each in self.products)

    def parts(self) -> list[Part]:
        """Return the products."""
        return [
            Part(c.covariance, c.observation[0], c.stationary_covariance[0], c.backwards)
            for c in self.products
        ]

    def weight(self, lag: Tensor) -> Tensor:
        """Return the share of a variance still explained of the component that forgets least."""
        weights = [each.kernel.weight(lag) for each in self.products]
        return torch.stack(weights).amax(dim=0)

    def variances(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the variances of the function at choices ``M x q``."""
        each = [
            c.amplitude[element].unsqueeze(-1) * c.covariance.variances(element, index)
            for c in self.products
        ]
        return torch.stack(each).sum(dim=0)

    def between(self, element: Tensor, index: Tensor, other: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at choices ``M x q`` and ``M x p``, ``M x q x p``."""
        each = [
            c.covariance.between(element, index, other) * c.correlation(lag, element)
            for c in self.products
        ]
        return torch.stack(each).sum(dim=0)

    def rows(self, index: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at events ``b x q`` with later states."""
        element = torch.arange(len(index), device=index.device)
        parts = []
        for c in self.products:
            gain = (c.stationary_covariance @ c.observation.unsqueeze(-1)).unsqueeze(1)
            gain = c.transition(lag) @ gain
            parts.append(gain * c.covariance.rows(element, index).unsqueeze(-2))
        return torch.cat(parts, dim=-2).flatten(-2)

    def advance(self, V: Tensor, lag: Tensor) -> Tensor:
        """Return covariances with states, ``b x m x N``, as of a time later by ``b x m``."""
        return (self._transition(lag) @ self._by_state(V)).flatten(-2)

    def combine(
        self, base: Tensor, weights: Tensor, V: Tensor, lag: Tensor, alpha: float = 1.0
    ) -> Tensor:
        """Return ``base`` plus ``alpha`` times weighted sums of rows as of a later time."""
        if weights.shape[1] * self.num_states >= MANY_SUMS:
            return self._combine_many(base, weights, V, lag, alpha)
        start, rows, first, sums = self._by_state(base), self._by_state(V), 0, []
        for c in self.products:
            last = first + c.kernel.num_states
            A = c.transition(lag).transpose(1, 2).unsqueeze(1)
            each = (weights[:, :, None, :, None] * A).flatten(1, 2)
            total = start[:, :, first:last].flatten(1, 2)
            # A product with so few rows is fast only on parts that fit into the cache.
            step = max(1, CACHED // max(1, rows[:, :1, first:last].numel()))
            step = step if last - first > 1 else rows.shape[1] + 1
            for i in range(0, rows.shape[1], step):
                part = rows[:, i : i + step, first:last].flatten(1, 2)
                total = torch.baddbmm(total, each[:, :, i : i + step].flatten(2), part, alpha=alpha)
            sums.append(total.unflatten(1, (-1, last - first)))
            first = last
        return torch.cat(sums, dim=2).flatten(2)

    def _combine_many(
        self, base: Tensor, weights: Tensor, V: Tensor, lag: Tensor, alpha: float
    ) -> Tensor:
        """Return many sums, as one product of matrices."""
        A = self._transition(lag).transpose(1, 2).unsqueeze(1)
        rows = self._by_state(V).flatten(1, 2)
        most = max(1, LARGE // max(1, A.numel()))
        parts = []
        for some, start in zip(weights.split(most, 1), base.split(most, 1), strict=True):
            # b x q x S x k x S, as a matrix with a row for each number of state of each sum.
            each = (some[:, :, None, :, None] * A).flatten(3).flatten(1, 2)
            total = torch.baddbmm(self._by_state(start).flatten(1, 2), each, rows, alpha=alpha)
            parts.append(total.unflatten(1, (-1, self.num_states)).flatten(-2))
        return torch.cat(parts, dim=1)

    def read(self, V: Tensor, index: Tensor, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return covariances with the function at later events, from those with states."""
        if element is None:
            element = torch.arange(len(index), device=index.device)
        # M x q x k x S
        columns = self._by_state(V).permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        most = max(1, LARGE // max(1, lag.numel() // max(1, lag.shape[1]) * self.num_states**2))
        parts = zip(columns.split(most, 1), lag.split(most, 1), strict=True)
        return torch.cat([(x * self._gaze(y, element)).sum(-1) for x, y in parts], dim=1)

    def read_all(self, mean: Tensor, lag: Tensor) -> Tensor:
        """Return the function at all choices after lags ``b``."""
        return (self._gaze(lag).unsqueeze(-2) @ self._by_state(mean)).squeeze(-2)

    def explain(self, V: Tensor) -> Tensor:
        """Return covariances of each choice's states that rows explain: ``b x (S S n)``."""
        V = self._by_state(V)
        return (V.unsqueeze(-2) * V.unsqueeze(-3)).sum(dim=1).flatten(1)

    def advance_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return explained covariances as of a time later by ``b``."""
        A, explained = self._transition(lag), self._explained(explained)
        one = A @ explained.flatten(2)
        two = A.unsqueeze(1) @ one.view_as(explained)
        return two.flatten(1)

    def read_explained(
        self, explained: Tensor, index: Tensor, lag: Tensor, element: Tensor
    ) -> Tensor:
        """Return the variance of the function that is explained at events, ``M x q``."""
        each = self._explained(explained).permute(0, 3, 1, 2)[element.unsqueeze(-1), index]
        gaze = self._gaze(lag, element).unsqueeze(-1)
        return (gaze.mT @ each @ gaze)[..., 0, 0]

    def read_all_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return the variance explained at all choices after lags ``b``: ``b x n``."""
        gaze = self._gaze(lag)
        weights = (gaze.unsqueeze(-1) * gaze.unsqueeze(-2)).flatten(1).unsqueeze(1)
        return (weights @ self._explained(explained).flatten(1, 2)).squeeze(1)

    def share(self, explained: Tensor) -> Tensor:
        """Return the largest share of a prior variance that explained covariances may come to.

        It is the trace relative to the prior covariance of the states: the part of the variance
        that a choice shows at present may be less than what a state shows later.
        """
        explained, first = self._explained(explained), 0
        total = torch.zeros_like(explained[:, 0, 0])
        for c in self.products:
            last = first + c.kernel.num_states
            block = explained[:, first:last, first:last].permute(0, 3, 1, 2)
            tiny = torch.finfo(block.dtype).tiny
            scale = c.covariance.diagonal.clamp_min(tiny)
            relative: Tensor = torch.linalg.solve(c.stationary_covariance.unsqueeze(1), block)
            total += relative.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / scale
            first = last
        return total.amax(dim=-1)

    def advance_merged_(self, merged: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of all states as of a time later by ``b``."""
        A, N = self._transition(lag), merged.shape[-1]
        for _ in range(2):
            # A symmetric matrix: the other side is that of the transpose.
            merged = (A @ merged.view(len(A), self.num_states, -1)).view(-1, N, N).mT.contiguous()
        return merged

    def merged_rows(self, merged: Tensor, index: Tensor, lag: Tensor, later: Tensor) -> Tensor:
        """Return merged covariances of the function at events with later states."""
        known = self._merged(merged, index, lag, torch.arange(len(index), device=index.device))
        return self.advance(known, later.unsqueeze(-1).expand(-1, known.shape[1]))

    def merged_between(
        self,
        merged: Tensor,
        index: Tensor,
        lag: Tensor,
        other: Tensor,
        other_lag: Tensor,
        element: Tensor,
    ) -> Tensor:
        """Return merged covariances of the function at events ``M x q`` and ``M x p``."""
        known = self._merged(merged, index, lag, element)
        each = torch.arange(len(element), device=index.device)
        lags = other_lag.unsqueeze(-1).expand(-1, -1, known.shape[1])
        columns = self._by_state(known).permute(0, 3, 1, 2)[each.unsqueeze(-1), other]
        return (columns * self._gaze(lags, element)).sum(-1).mT

    def _merged(self, merged: Tensor, index: Tensor, lag: Tensor, element: Tensor) -> Tensor:
        """Return merged covariances of the function at events with the states, ``M x q x N``."""
        by_state = merged.unflatten(1, (self.num_states, -1))
        gaze = self._gaze(lag, element)
        total = merged.new_zeros(*index.shape, merged.shape[-1])
        for s in range(self.num_states):
            total += gaze[..., s, None] * by_state[element.unsqueeze(-1), s, index]
        return total

    def _transition(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the matrices of all components, ``... x S x S``."""
        if len(self.components) == 1:
            return self.products[0].transition(lag, element)
        A = lag.new_zeros(*lag.shape, self.num_states, self.num_states)
        first = 0
        for c in self.products:
            last = first + c.kernel.num_states
            A[..., first:last, first:last] = c.transition(lag, element)
            first = last
        return A

    def _gaze(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the vectors whose product with a state is the function later, ``... x S``."""
        parts = []
        for c in self.products:
            parts.append(c.observation[0] @ c.transition(lag, element))
        return torch.cat(parts, dim=-1)

    def _by_state(self, V: Tensor) -> Tensor:
        """Return ``... x N`` as ``... x S x n``."""
        return V.view(*V.shape[:-1], self.num_states, V.shape[-1] // self.num_states)

    def _explained(self, explained: Tensor) -> Tensor:
        """Return ``b x R`` as ``b x S x S x n``."""
        S = self.num_states
        return explained.view(len(explained), S, S, explained.shape[-1] // S**2)
