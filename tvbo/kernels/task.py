"""A learned covariance of tasks as a kernel over an index column."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import IndexKernel
from torch import Tensor

from tvbo.kernels.batch import expanded, part_of_batch
from tvbo.kernels.covariance_matrix import look_up

MIN_VARIANCE = 1e-6


class TaskKernel(IndexKernel):
    r"""GPyTorch's :class:`~gpytorch.kernels.IndexKernel` for numbered tasks or contexts.

    .. math:: k(i, j) = (B B^\top + \operatorname{diag}(v))_{ij}

    with :math:`B` of shape ``num_tasks x rank`` and :math:`v \ge 10^{-6}`, both learned (Krause,
    Ong, 2011, Section 5.3; Bonilla et al., 2008). The initial variances are one and the
    correlations near one half, the same in every process, whereas GPyTorch's are random. An unknown
    task raises.

    Where the covariance is known, use :class:`tvbo.kernels.CovarianceMatrixKernel`.

    Args:
        num_tasks: Number of tasks, which are numbered from 0.
        rank: Rank of the learned correlation, from 1 to ``num_tasks``.
        **kwargs: ``active_dims`` (the index column) and ``batch_shape``, passed to
            :class:`gpytorch.kernels.Kernel`.

    Shape:
        ``... x n x 1`` and ``... x n' x 1`` indices give ``... x n x n'``.

    Raises:
        ValueError: if ``num_tasks`` or ``rank`` is out of range.
        InputDataError: if an index is not an integer from 0 to ``num_tasks - 1``.
    """

    def __init__(self, num_tasks: int, rank: int = 1, **kwargs: Any):
        if num_tasks < 1:
            raise ValueError(f"Expected num_tasks >= 1. Got {num_tasks}.")
        if not 1 <= rank <= num_tasks:
            raise ValueError(f"Expected rank from 1 to {num_tasks}. Got {rank}.")
        # The base class draws initial values from the global generator.
        with torch.random.fork_rng(devices=[]):
            super().__init__(
                num_tasks,
                rank,
                var_constraint=GreaterThan(MIN_VARIANCE, transform=None, initial_value=0.5),
                **kwargs,
            )
        task = (torch.arange(num_tasks) + 0.5).unsqueeze(-1)
        # Columns that differ, because equal ones would learn the same factor several times.
        start = torch.cos(math.pi * task * torch.arange(rank) / num_tasks)
        start[:, 1:] *= 0.1
        start = start / (2 * start.square().sum(dim=-1, keepdim=True)).sqrt()
        with torch.no_grad():
            self.covar_factor.copy_(start.expand_as(self.covar_factor))

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return int(self.covar_factor.shape[-2])

    def __getitem__(self, index: Any) -> TaskKernel:
        """Return the kernel of a part of the batch."""
        return part_of_batch(self, index)

    def expand_batch(self, *sizes: Any) -> TaskKernel:
        """Return the kernel with its parameters expanded to a batch shape."""
        return expanded(self, *sizes)

    def forward(
        self,
        i1: Tensor,
        i2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """Return the covariances of tasks ``i1`` and ``i2``, ``... x n x n'``."""
        covar = look_up(self._eval_covar_matrix(), i1, i2, diag, name="tasks")
        return covar.unsqueeze(-2 if diag else -3) if last_dim_is_batch else covar
