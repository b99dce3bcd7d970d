"""A kernel that sees some columns of its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.validation import check_finite


class ColumnKernel(Kernel):
    """``base_kernel`` applied to the given columns, its own ``active_dims`` counted among them.

    It leaves the given kernel untouched, so that one kernel object can serve several models and
    its owner can read the learned parameters from it.

    Args:
        base_kernel: Any kernel.
        columns: The columns of the input that ``base_kernel`` sees, in this order.

    Raises:
        InputDataError: if an input is NaN or infinite there.
    """

    def __init__(self, base_kernel: Kernel, columns: Sequence[int]):
        super().__init__(active_dims=tuple(columns))
        self.base_kernel = base_kernel

    @property
    def batch_shape(self) -> Size:
        """As the base kernel's. GPyTorch would look through every kernel inside, each time."""
        return self.base_kernel.batch_shape

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def dtype(self) -> torch.dtype:
        """As the base kernel."""
        return self.base_kernel.dtype

    def __getitem__(self, index) -> ColumnKernel:
        """The kernel of a part of the batch."""
        if not self.batch_shape:
            return self
        # Not GPyTorch's, which takes a part of the columns as well.
        return ColumnKernel(self.base_kernel[index], self.active_dims.tolist())

    @property
    def is_stationary(self) -> bool:
        """As the base kernel."""
        return self.base_kernel.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params):
        """Covariances by the base kernel, for inputs already reduced to the columns."""
        check_finite("inputs", x1)
        check_finite("inputs", x2)
        return self.base_kernel(x1, x2, diag=diag, **params)


def part_of_batch(kernel: Kernel, index) -> Kernel:
    """``kernel[index]`` by GPyTorch, which would take a part of ``active_dims`` as well."""
    if not kernel.batch_shape:
        return kernel
    columns, kernel.active_dims = kernel.active_dims, None
    try:
        part = Kernel.__getitem__(kernel, index)
        part.active_dims = columns
    finally:
        kernel.active_dims = columns
    return part
