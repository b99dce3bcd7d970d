"""The prior over a finite set and time, as a streaming posterior needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tvbo.models.resizable_module import BatchedModule


def symmetric_root(matrix: Tensor) -> Tensor:
    """Return the symmetric roots of positive semi-definite matrices, ``... x s x s``."""
    if matrix.shape[-1] == 1:
        return matrix.clamp_min(0.0).sqrt()
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return root


class ChoiceCovariance(Protocol):
    """Covariances of choices by their indices, as a draw needs them."""

    diagonal: Tensor

    def rows(self, element: Tensor, index: Tensor) -> Tensor:
        """Return covariances of choices ``N x q`` of batch elements ``N`` with all choices."""


@dataclass(frozen=True)
class Part:
    """One product of the prior: a kernel over choices times a Markov process, for drawing paths.

    Args:
        covariance: The kernel.
        observation: Vector ``h`` of the process, ``s``.
        stationary_covariance: ``P``, of the first batch element, ``s x s``.
        backwards: Returns, for lags ``m``, the matrices that lead from a state to an earlier one,
            and roots of the covariance of the noise that is added, ``m x s x s`` each.
    """

    covariance: ChoiceCovariance
    observation: Tensor
    stationary_covariance: Tensor
    backwards: Callable[[Tensor], tuple[Tensor, Tensor]]


class MarkovPrior(BatchedModule, ABC):
    """Prior over ``n`` choices and time, Markov with a state of ``S`` numbers for each choice.

    Vectors of states have ``N = S n`` columns, all choices of the first number first. Shapes begin
    with the ``b`` batch elements, except where ``element``, ``M`` indices of these, is given: then
    they begin with ``M``. Lags are not negative.

    Attributes:
        num_choices: ``n``.
        num_states: ``S``.
    """

    num_choices: int
    num_states: int

    @property
    @abstractmethod
    def forgetting_rate(self) -> Tensor | None:
        """ε of each batch element, ``b``; None unless time is one exponential decay."""

    @property
    @abstractmethod
    def is_static(self) -> bool:
        """Whether time makes no difference."""

    def select(self, vectors: Tensor, choices: Tensor | None) -> Tensor:
        """Return the columns ``... x N`` or ``... x R`` of some choices; of all for None."""
        if choices is None:
            return vectors
        by_state: Tensor = vectors.unflatten(-1, (-1, self.num_choices))
        return by_state[..., choices].flatten(-2)

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the products whose sum the prior is."""

    @abstractmethod
    def weight(self, lag: Tensor) -> Tensor:
        """Return the largest share of a variance that is still explained after lags ``b x k``."""

    @abstractmethod
    def variances(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the variances of the function at choices ``M x q``."""

    @abstractmethod
    def between(self, element: Tensor, index: Tensor, other: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at choices ``M x q`` and ``M x p``, ``M x q x p``."""

    @abstractmethod
    def rows(self, index: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at events ``b x q`` with later states, ``b x q x N``.

        Args:
            index: Indices of the choices of the events, ``b x q``.
            lag: Times from the events to the states, ``b x q``.
        """

    @abstractmethod
    def advance(self, V: Tensor, lag: Tensor) -> Tensor:
        """Return covariances with states, ``b x m x N``, as of a time later by ``b x m``."""

    @abstractmethod
    def combine(
        self, base: Tensor, weights: Tensor, V: Tensor, lag: Tensor, alpha: float = 1.0
    ) -> Tensor:
        """Return ``base`` plus ``alpha`` times weighted sums of rows as of a later time.

        Args:
            base: ``b x q x N``.
            weights: ``b x q x k``.
            V: Rows, ``b x k x N``.
            lag: Lags from the rows to that time, ``b x k``.
            alpha: A number.
        """

    @abstractmethod
    def read(self, V: Tensor, index: Tensor, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return covariances with the function at later events, from those with states.

        Args:
            V: Covariances with the states, ``b x k x N``.
            index: Indices of the choices of the events, ``b x q``, or ``M x q``.
            lag: Lags from the states to the events, ``b x q x k``, or ``M x q x k``.
            element: Indices of the batch elements; None for all in order.

        Returns:
            ``b x q x k``, or ``M x q x k``.
        """

    @abstractmethod
    def read_all(self, mean: Tensor, lag: Tensor) -> Tensor:
        """Return the function at all choices after lags ``b``, from states ``b x N``: ``b x n``."""

    @abstractmethod
    def explain(self, V: Tensor) -> Tensor:
        """Return covariances of each choice's states that rows ``b x q x N`` explain: ``b x R``."""

    @abstractmethod
    def advance_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return what :meth:`explain` gave, ``b x R``, as of a time later by ``b``."""

    @abstractmethod
    def read_explained(
        self, explained: Tensor, index: Tensor, lag: Tensor, element: Tensor
    ) -> Tensor:
        """Return the variance of the function that is explained at events, ``M x q``."""

    @abstractmethod
    def read_all_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return the variance explained at all choices after lags ``b``: ``b x n``."""

    @abstractmethod
    def share(self, explained: Tensor) -> Tensor:
        """Return the largest share of a prior variance that ``b x R`` may come to, ``b``."""

    @abstractmethod
    def advance_merged_(self, merged: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of all states, ``b x N x N``, later by ``b``; may change them."""

    @abstractmethod
    def merged_rows(self, merged: Tensor, index: Tensor, lag: Tensor, later: Tensor) -> Tensor:
        """Return merged covariances of the function at events with later states, ``b x q x N``.

        Args:
            merged: Covariances of all states, ``b x N x N``.
            index: Indices of the choices of the events, ``b x q``.
            lag: Lags from the merged states to the events, ``b x q``.
            later: Lags from the merged states to the later ones, ``b``.
        """

    @abstractmethod
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
