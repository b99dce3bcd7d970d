"""A kernel under which different rows are independent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvbo.kernels.batch import BatchKernel
from tvbo.spaces.observations import check_finite


class IdentityKernel(BatchKernel):
    r"""One if two rows are equal, else zero: independent arms or contexts.

    .. math:: k(x, x') = \mathbb{1}[x = x']

    Over arms, with a linear kernel over features, it makes LinUCB (Krause, Ong, 2011, Section 5.3);
    over contexts, a GP for each context. It has no parameters, and no gradient in ``x``.

    Shape:
        ``... x n x d`` and ``... x n' x d`` give ``... x n x n'``.

    Raises:
        InputDataError: if an input is NaN or infinite.

    Example:
        >>> kernel = ContextActionKernel(
        ...     IdentityKernel(active_dims=[0]), LinearKernel(active_dims=[1, 2])
        ... )
    """

    is_stationary = True

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """Return the covariances of rows ``x1`` and ``x2``, ``... x n x n'``."""
        check_finite("inputs", x1)
        check_finite("inputs", x2)
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        if not diag:
            x1, x2 = x1.unsqueeze(-2), x2.unsqueeze(-3)
        same = (x1 == x2).all(dim=-1).to(x1)
        rows = 1 if diag else 2
        batch_shape = torch.broadcast_shapes(self.batch_shape, same.shape[:-rows])
        return same.expand(*batch_shape, *same.shape[-rows:])
