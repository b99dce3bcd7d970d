"""The prior covariance over a finite set, by rows."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.models.streaming.state import GrowingModule

MAX_CACHED = 25_000_000
"""Entries of the covariance up to which all of it is kept (200 MB): a set of 5,000 actions. The
rows of a larger one are computed when they are asked for."""


class FiniteCovariance(GrowingModule):
    """``k(x_i, x_j)`` for positions ``i, j`` in a finite set, for independent trials.

    Args:
        choices: ``n x d`` inputs of the kernel.
        covar_module: The kernel, used as it stands: gradients do not flow, and later changes are
            not seen.
        batch_shape: Of the trials; the kernel has this batch shape, or shares one kernel.

    Attributes:
        diagonal: Variances, ``1 x n`` where trials share the kernel, else ``b x n``.
        matrix: ``1 x n x n`` or ``b x n x n``; None where it is too large to keep.

    Raises:
        ValueError: if the kernel gives a variance that is negative or not finite, or trials have
            their own kernels over more choices than can be kept.
    """

    def __init__(self, choices: Tensor, covar_module: Kernel, batch_shape: Size):
        super().__init__()
        with torch.no_grad():
            # With its batch: GPyTorch would take b x n variances of n = b choices for a matrix.
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
                f"Expected at most {MAX_CACHED} covariances where trials have their own kernels. "
                f"Got {len(self.diagonal)} trials with {n} choices."
            )
        self.register_buffer("matrix", matrix)
        # Every acquisition walks through all modules of its model: none that is not needed.
        self.covar_module = covar_module if matrix is None else None
        self.register_buffer("inputs", choices if matrix is None else None, persistent=False)

    def rows(self, trial: Tensor, index: Tensor) -> Tensor:
        """Covariances with all choices, ``N x q x n``.

        Args:
            trial: Numbers of the trials, ``N``.
            index: Positions, ``N x q``.
        """
        if self.matrix is None:
            return self._evaluate(index, self.inputs)
        return self.matrix[self._own(trial)[:, None], index]

    def between(self, trial: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Covariances of positions ``N x q`` and ``N x p``, trial by trial: ``N x q x p``."""
        if self.matrix is None:
            return self._evaluate(first, self.inputs[second])
        return self.matrix[
            self._own(trial)[:, None, None], first.unsqueeze(-1), second.unsqueeze(-2)
        ]

    def variances(self, trial: Tensor, index: Tensor) -> Tensor:
        """Prior variances, ``N x q``."""
        return self.diagonal[self._own(trial)[:, None], index]

    def take(self, trial: Tensor) -> FiniteCovariance:
        """That of some trials; shared tensors are not copied."""
        return super().take(trial) if len(self.diagonal) > 1 else self

    def _own(self, trial: Tensor) -> Tensor:
        return trial if len(self.diagonal) > 1 else torch.zeros_like(trial)

    def _evaluate(self, index: Tensor, others: Tensor) -> Tensor:
        with torch.no_grad():
            return self.covar_module(self.inputs[index], others).to_dense()
