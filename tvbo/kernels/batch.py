"""Batches of kernels: their parts, and their expansion to a larger batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

T = TypeVar("T", bound=Kernel)


class BatchKernel(Kernel):
    """A kernel of which GPyTorch can take a part of the batch, and which it can expand.

    GPyTorch's own would index and expand ``active_dims`` as well, and knows neither type, device
    nor batch of a kernel without parameters.

    Args:
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.
    """

    _one: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # For type, device and batch, which a kernel without parameters would not know.
        self.register_buffer("_one", torch.ones(*self.batch_shape, 1), persistent=False)

    @property
    def batch_shape(self) -> Size:
        """Shape of the batch of parameters."""
        # What BoTorch sets when it takes a part of the outputs may be wrong.
        return self._one.shape[:-1] if "_one" in self._buffers else self._batch_shape

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and matrices."""
        held = {x.dtype for x in (self._one, *self.parameters())}
        if len(held) > 1:
            raise RuntimeError(f"The kernel's parameters have multiple dtypes: {held}.")
        dtype: torch.dtype = held.pop()
        return dtype

    @property
    def device(self) -> torch.device:
        """Device of parameters and matrices."""
        return self._one.device

    def __getitem__(self, index: Any) -> Self:
        """Return the kernel of a part of the batch."""
        return part_of_batch(self, index)

    def expand_batch(self, *sizes: Any) -> Self:
        """Return the kernel with its parameters expanded to a batch shape."""
        return expanded(self, *sizes)


def part_of_batch(kernel: T, index: Any) -> T:
    """Return GPyTorch's ``kernel[index]``, but without indexing ``active_dims`` as well."""
    if not kernel.batch_shape:
        return kernel
    return _without_active_dims(kernel, lambda: Kernel.__getitem__(kernel, index))


def expanded(kernel: T, *sizes: Any) -> T:
    """Return GPyTorch's ``kernel.expand_batch``, but without expanding ``active_dims`` as well."""
    return _without_active_dims(kernel, lambda: Kernel.expand_batch(kernel, *sizes))


def _without_active_dims(kernel: T, make: Callable[[], T]) -> T:
    columns, kernel.active_dims = kernel.active_dims, None
    try:
        new = make()
        new.active_dims = columns
    finally:
        kernel.active_dims = columns
    return new
