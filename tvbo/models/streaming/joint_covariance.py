"""Joint posterior covariances of many events, evaluated when they are needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from linear_operator.operators import DenseLinearOperator, KernelLinearOperator, LinearOperator
from linear_operator.operators.linear_operator_representation_tree import (
    LinearOperatorRepresentationTree,
)
from torch import Size, Tensor

from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.rows import lag_since

MAX_EVALUATED = 32
"""Rows up to which a joint covariance is evaluated at once: a lazy one costs as much."""


@dataclass(frozen=True, eq=False)
class EventCovariance:
    """Posterior covariances of later events, as the rows held explain them.

    An event is ``[batch element, index of the choice, time, posterior variance]``.

    Args:
        prior: The prior over choices and time.
        V: Covariances of the innovations with the states of the choices, ``b x k x N``.
        made_at: Times as of which these are, ``b x k``.
        merged: Covariance that merged rows explain, ``b x N x N``; None if there is none.
        merged_at: Time as of which it is, ``b``.
    """

    prior: MarkovPrior
    V: Tensor
    made_at: Tensor
    merged: Tensor | None
    merged_at: Tensor

    def joint(
        self, element: Tensor, index: Tensor, time: Tensor, variance: Tensor, shape: Size
    ) -> Tensor | LinearOperator:
        """Return the joint covariance of events, where it is large not yet evaluated.

        Args:
            element: Indices of the batch elements, ``M``.
            index: Indices of the choices, ``M x q``.
            time: Times, ``M x q``.
            variance: Posterior variances, ``M x q``.
            shape: Shape of the events, whose last dimension is ``q`` and the others are ``M``.
        """
        if shape[-1] <= MAX_EVALUATED:
            return self._joint(element, index, time, variance).reshape(*shape, shape[-1])
        parts = (element.unsqueeze(-1).expand_as(time), index, time, variance)
        events = torch.stack([part.to(time) for part in parts], dim=-1).reshape(*shape, 4)
        return JointCovariance(events, events, covar_func=self)

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the covariances ``... x q x p`` of events ``... x q x 4`` and ``... x p x 4``."""
        batch = first.shape[:-2]
        one, other = (x.reshape(batch.numel(), *x.shape[-2:]) for x in (first, second))
        element, index, time = one[:, 0, 0].long(), one[..., 1].long(), one[..., 2]
        if torch.equal(one, other):
            covar = self._joint(element, index, time, one[..., 3])
        else:
            columns = (other[..., 1].long(), other[..., 2])
            V, other_V = (self._read(element, *each) for each in ((index, time), columns))
            covar = self._between(element, index, time, V, *columns, other_V)
        return covar.reshape(*batch, *covar.shape[-2:])

    def _joint(self, element: Tensor, index: Tensor, time: Tensor, variance: Tensor) -> Tensor:
        V = self._read(element, index, time)
        covar = self._between(element, index, time, V, index, time, V)
        # Exactly the variance that a prediction of one row at a time gives.
        covar.diagonal(dim1=-2, dim2=-1).copy_(variance)
        return covar

    def _between(
        self,
        element: Tensor,
        index: Tensor,
        time: Tensor,
        V: Tensor,
        other: Tensor,
        other_time: Tensor,
        other_V: Tensor,
    ) -> Tensor:
        """Return covariances ``M x q x p`` of events ``M x q`` and ``M x p``."""
        apart = (time.unsqueeze(-1) - other_time.unsqueeze(-2)).abs()
        covar = self.prior.between(element, index, other, apart) - V @ other_V.mT
        if self.merged is None:
            return covar
        lags = (lag_since(self.merged_at[element], t) for t in (time, other_time))
        return covar - self.prior.merged_between(
            self.merged, index, next(lags), other, next(lags), element
        )

    def _read(self, element: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return covariances of events with the innovations held, ``M x q x k``."""
        lag = time.unsqueeze(-1) - self.made_at[element].unsqueeze(-2)
        return self.prior.read(self.V, index, lag, element)


class JointCovariance(KernelLinearOperator):
    """The covariance of events, whose diagonal is known, as GPyTorch evaluates its kernels.

    The other entries cost :math:`O(q^2 k)` for ``q`` events and ``k`` rows held, once.
    """

    def _diagonal(self) -> Tensor:
        variance: Tensor = self.x1[..., 3]
        return variance if torch.equal(self.x1, self.x2) else super()._diagonal()

    def evaluate_kernel(self) -> LinearOperator:
        """Return the covariance matrix as a dense operator."""
        return DenseLinearOperator(self.covar_mat)

    def to_dense(self) -> Tensor:
        """Return the covariance matrix."""
        covar: Tensor = self.covar_mat
        return covar

    def representation(self) -> tuple[Tensor, ...]:
        """Return the covariance matrix, of which solves and roots are functions."""
        represented: tuple[Tensor, ...] = self.evaluate_kernel().representation()
        return represented

    def representation_tree(self) -> LinearOperatorRepresentationTree:
        """Return how to build the dense operator."""
        return LinearOperatorRepresentationTree(self.evaluate_kernel())
