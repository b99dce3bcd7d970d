"""The prior covariance over a finite set of choices."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.models.resizable_module import BatchedModule

MAX_CACHED = 25_000_000
"""Entries of the covariance matrix up to which it is stored (200 MB): those of 5,000 choices. The
rows of a larger one are computed when they are needed."""


class FiniteCovariance(BatchedModule):
    """Covariances ``k(x_i, x_j)`` of choices by their indices, for independent batch elements.

    Args:
        choices: ``n x d`` inputs of the kernel.
        covar_module: The kernel, evaluated without gradients; later changes of it have no effect
            while the matrix is stored.
        batch_shape: Batch shape of the model. The kernel has this batch shape, or none.

    Attributes:
        diagonal: Variances, ``1 x n`` if the batch shares one kernel, else ``b x n``.
        matrix: ``1 x n x n`` or ``b x n x n``; None if it is too large to store.

    Raises:
        ValueError: if a variance is negative or not finite, or a batch of kernels has more choices
            than can be stored.
    """

    diagonal: Tensor
    matrix: Tensor | None
    inputs: Tensor
    covar_module: Kernel | None

    def __init__(self, choices: Tensor, covar_module: Kernel, batch_shape: Size):
        super().__init__()
        with torch.no_grad():
            # With the batch: for n = b, GPyTorch would take b x n variances for a matrix.
            batch = choices.expand(*covar_module.batch_shape, *choices.shape)
            diagonal = covar_module(batch, diag=True)
        if not (torch.isfinite(diagonal) & (diagonal >= 0)).all():
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. "
                f"Got variances from {diagonal.min():.3g} to {diagonal.max():.3g}."
            )
        shared = diagonal.shape[:-1].numel() == 1
        lead = Size([1]) if shared else batch_shape
        n = len(choices)
        self.register_buffer("diagonal", diagonal.expand(*lead, n).reshape(-1, n))
        matrix = None
        if self.diagonal.numel() * n <= MAX_CACHED:
            with torch.no_grad():
                matrix = covar_module(choices).to_dense().expand(*lead, n, n).reshape(-1, n, n)
        elif not shared:
            raise ValueError(
                f"Expected at most {MAX_CACHED} covariances where batch elements have their own "
                f"kernels. Got {len(self.diagonal)} batch elements with {n} choices."
            )
        self.register_buffer("matrix", matrix)
        # Acquisitions visit all modules of their model, so that an unneeded one costs time.
        self.covar_module = covar_module if matrix is None else None
        self.register_buffer("inputs", choices if matrix is None else None, persistent=False)

    def rows(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the covariances of ``index`` with all choices, ``N x q x n``.

        Args:
            element: Indices of the batch elements, ``N``.
            index: Indices of the choices, ``N x q``.
        """
        if self.matrix is None:
            return self._evaluate(index, self.inputs)
        return self.matrix[self._kernel_index(element)[:, None], index]

    def between(self, element: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the covariances of choices ``N x q`` and ``N x p``: ``N x q x p``."""
        if self.matrix is None:
            return self._evaluate(first, self.inputs[second])
        each = self._kernel_index(element)[:, None, None]
        return self.matrix[each, first.unsqueeze(-1), second.unsqueeze(-2)]

    def variances(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the prior variances of choices, ``N x q``."""
        return self.diagonal[self._kernel_index(element)[:, None], index]

    def take(self, element: Tensor) -> FiniteCovariance:
        """Return the covariance of some batch elements; a shared one is not copied."""
        return super().take(element) if len(self.diagonal) > 1 else self

    def _kernel_index(self, element: Tensor) -> Tensor:
        """Return the indices of the batch elements' kernels."""
        return element if len(self.diagonal) > 1 else torch.zeros_like(element)

    def _evaluate(self, index: Tensor, others: Tensor) -> Tensor:
        assert self.covar_module is not None  # since the matrix is not stored
        with torch.no_grad():
            covar: Tensor = self.covar_module(self.inputs[index], others).to_dense()
            return covar
