"""Kernels over things by number: a known covariance, a learned one, none at all."""

from __future__ import annotations

import math
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import IndexKernel
from torch import Size, Tensor

from tvbo.kernels.batch import BatchKernel
from tvbo.randomness import seeded
from tvbo.spaces.observations import check_finite
from tvbo.values import check_count

MIN_VARIANCE = 1e-6


class CovarianceMatrixKernel(BatchKernel):
    r"""A known ``n x n`` covariance of ``n`` arms, tasks or sensors, by their indices.

    .. math:: k(i, j) = C_{ij}

    Use it for an empirical covariance of sensors (Bogunovic et al., 2016, Section 5.2), a known
    inter-task covariance (Krause, Ong, 2011), or ``torch.eye(n)`` for unrelated arms. It has no
    parameters; wrap it in :class:`gpytorch.kernels.ScaleKernel` to learn a scale.

    Args:
        covar_matrix: ``batch_shape x n x n``, symmetric and positive semi-definite (eigenvalues
            above minus 1e-8 times the largest).
        **kwargs: ``active_dims`` (the index column), and ``batch_shape``, to which the matrices are
            expanded, passed to :class:`gpytorch.kernels.Kernel`.

    Shape:
        ``... x m x 1`` and ``... x m' x 1`` indices give ``... x m x m'``.

    Raises:
        ValueError: if ``covar_matrix`` is not square, symmetric or positive semi-definite.
        InputDataError: if the matrix or an index is not finite, or an index is not an integer from
            0 to ``n - 1``.

    Example:
        >>> kernel = CovarianceMatrixKernel(torch.eye(3))
        >>> kernel(torch.tensor([[0.0], [2.0]])).to_dense()
    """

    covar_matrix: Tensor

    def __init__(self, covar_matrix: Tensor, **kwargs: Any):
        covar_matrix = torch.as_tensor(covar_matrix)
        if not covar_matrix.is_floating_point():
            covar_matrix = covar_matrix.to(torch.float64)
        check_covariance(covar_matrix)
        batch_shape = kwargs.pop("batch_shape", None) or Size()
        batch_shape = torch.broadcast_shapes(batch_shape, covar_matrix.shape[:-2])
        super().__init__(batch_shape=batch_shape, **kwargs)
        self.register_buffer("covar_matrix", covar_matrix.expand(*batch_shape, -1, -1))
        self._one = self._one.to(covar_matrix)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of indices ``x1`` and ``x2``, ``... x m x m'``."""
        return look_up(self.covar_matrix, x1, x2, diag)


class TaskKernel(BatchKernel, IndexKernel):
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
        check_count(num_tasks=num_tasks)
        if not 1 <= rank <= num_tasks:
            raise ValueError(f"Expected rank from 1 to {num_tasks}. Got {rank}.")
        # The base class draws initial values from the global generator.
        with seeded(torch.Generator()):
            super().__init__(
                num_tasks=num_tasks,
                rank=rank,
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

    def forward(self, i1: Tensor, i2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of tasks ``i1`` and ``i2``, ``... x n x n'``."""
        return look_up(self._eval_covar_matrix(), i1, i2, diag)


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

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of rows ``x1`` and ``x2``, ``... x n x n'``."""
        check_finite("inputs", x1)
        check_finite("inputs", x2)
        if not diag:
            x1, x2 = x1.unsqueeze(-2), x2.unsqueeze(-3)
        same = (x1 == x2).all(dim=-1).to(x1)
        rows = 1 if diag else 2
        batch_shape = torch.broadcast_shapes(self.batch_shape, same.shape[:-rows])
        return same.expand(*batch_shape, *same.shape[-rows:])


def look_up(covar_matrix: Tensor, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Return the entries of ``batch_shape x n x n`` matrices at two columns of indices.

    Args:
        covar_matrix: ``batch_shape x n x n``.
        x1: Row indices, ``... x m x 1``.
        x2: Column indices, ``... x m' x 1``.
        diag: Whether to pair the indices: ``... x m``, instead of ``... x m x m'``.

    Raises:
        BotorchTensorDimensionError: if there is more than one column.
        InputDataError: if a value is not an integer from 0 to ``n - 1``.
    """
    n = covar_matrix.shape[-1]
    i, j = (index_column(x, n) for x in (x1, x2))
    if not diag:
        i, j = i.unsqueeze(-1), j.unsqueeze(-2)
    # Along one axis of the flattened matrix, so that one call gathers from a batch of matrices.
    position = i * n + j
    tail = position.ndim - (1 if diag else 2)
    batch_shape = torch.broadcast_shapes(covar_matrix.shape[:-2], position.shape[:tail])
    position = position.expand(*batch_shape, *position.shape[tail:])
    entries = covar_matrix.flatten(-2).expand(*batch_shape, -1)
    return entries.gather(-1, position.flatten(len(batch_shape))).reshape(position.shape)


def index_column(x: Tensor, num_indices: int) -> Tensor:
    """Return the only column of ``x``, ``... x 1``, as integers ``...``.

    Raises:
        BotorchTensorDimensionError: if there is more than one column.
        InputDataError: if a value is not an integer from 0 to ``num_indices - 1``.
    """
    if x.shape[-1] != 1:
        raise BotorchTensorDimensionError(
            f"Expected one column of indices; set active_dims. Got {x.shape[-1]} columns."
        )
    check_finite("indices", x)
    index = x.squeeze(-1).round().long()
    wrong = (index != x.squeeze(-1)) | (index < 0) | (index >= num_indices)
    if wrong.any():
        value = x.squeeze(-1)[wrong][0].item()
        raise InputDataError(
            f"Expected indices among the integers 0 to {num_indices - 1}. Got {value}."
        )
    return index


def check_covariance(covar_matrix: Tensor, tolerance: float = 1e-8) -> None:
    """Raise unless ``covar_matrix`` is a batch of symmetric positive semi-definite matrices.

    Args:
        covar_matrix: ``batch_shape x n x n``.
        tolerance: Largest error, as a share of the largest entry or eigenvalue.

    Raises:
        ValueError: if a matrix is not square, symmetric or positive semi-definite.
        InputDataError: if an entry is not finite.
    """
    shape = tuple(covar_matrix.shape)
    if covar_matrix.ndim < 2 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ValueError(f"Expected a square covariance matrix. Got covar_matrix.shape={shape}.")
    check_finite("covar_matrix", covar_matrix)
    # Single precision rounds at 1e-7 and needs a larger tolerance.
    tolerance = max(tolerance, 10 * torch.finfo(covar_matrix.dtype).eps)
    asymmetry = (covar_matrix - covar_matrix.mT).abs().amax(dim=(-2, -1))
    if (asymmetry > tolerance * covar_matrix.abs().amax(dim=(-2, -1))).any():
        raise ValueError(
            "Expected a symmetric covariance matrix. "
            f"Got entries that differ by {asymmetry.max():.3g} from their mirror image."
        )
    eigenvalues = torch.linalg.eigvalsh(covar_matrix)
    smallest, largest = eigenvalues[..., 0], eigenvalues[..., -1]
    wrong = smallest < -tolerance * largest.clamp_min(0.0)
    if wrong.any():
        raise ValueError(
            "Expected a positive semi-definite covariance matrix. Got smallest eigenvalue "
            f"{smallest[wrong].min():.3g} (largest {largest[wrong].max():.3g})."
        )
