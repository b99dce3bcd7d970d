"""Kernels whose batch can be indexed and expanded, also where they act on some columns alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from typing import Any, Self

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.spaces.observations import check_finite


class BatchKernel(Kernel):
    """A kernel of which GPyTorch can take a part of the batch, and which it can expand.

    It may be made of other kernels, its attributes, whose batch, type and device it has. GPyTorch's
    own would index and expand ``active_dims`` as well, and what is inside of the other kernels a
    second time, and knows neither type, device nor batch of a kernel without parameters.

    Args:
        **kwargs: ``active_dims`` and ``batch_shape``, passed to :class:`gpytorch.kernels.Kernel`.
    """

    active_dims: Tensor | None
    _one: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # For type, device and batch, which a kernel without parameters would not know.
        self.register_buffer("_one", torch.ones(*self.batch_shape, 1), persistent=False)

    @property
    def parts(self) -> dict[str, Kernel]:
        """The other kernels by name."""
        return {name: each for name, each in self._modules.items() if isinstance(each, Kernel)}

    @property
    def batch_shape(self) -> Size:
        """Shape of the batch of parameters, broadcast with those of the other kernels."""
        # What BoTorch sets when it takes a part of the outputs may be wrong.
        own = self._one.shape[:-1] if "_one" in self._buffers else self._batch_shape
        parts = [part.batch_shape for part in self.parts.values()]
        if not parts:
            return own
        # torch.broadcast_shapes would import SymPy at its first call.
        return torch.broadcast_tensors(*map(torch.empty, (own, *parts)))[0].shape

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters; without any, that of the other kernels or of matrices."""
        parts = self.parts.values()
        held = {x.dtype for x in (*self.parameters(), *([] if parts else [self._one]))}
        if len(held) > 1:
            raise RuntimeError(f"The kernel's parameters have multiple dtypes: {held}.")
        types = held or [each.dtype for each in parts]
        return reduce(torch.promote_types, types)

    @property
    def device(self) -> torch.device:
        """Device of parameters, matrices, and the other kernels."""
        return next(iter(self.parts.values() or [self._one])).device

    def __call__(self, *inputs: Any, **params: Any) -> Any:
        """Return the covariances of inputs, as GPyTorch's kernels do."""
        if params.get("last_dim_is_batch"):
            raise UnsupportedError("Expected last_dim_is_batch=False, as in GPyTorch 2. Got True.")
        return super().__call__(*inputs, **params)

    def __getitem__(self, index: Any) -> Self:
        """Return the kernel of a part of the batch."""
        return self._changed(lambda each: each[index]) if self.batch_shape else self

    def expand_batch(self, *sizes: Any) -> Self:
        """Return the kernel with its parameters expanded to a batch shape."""
        shape = Size(sizes if isinstance(sizes[0], int) else sizes[0])
        depth = len(self.batch_shape)

        def expanded(each: Any) -> Any:
            if isinstance(each, Kernel):
                return each.expand_batch(shape)
            return each.expand(*shape, *each.shape[depth:]).clone()

        return self._changed(expanded)

    def _changed(self, change: Callable[[Any], Any]) -> Self:
        """Return a copy whose other kernels, and own tensors with a batch, are changed."""
        new, depth = deepcopy(self), len(self.batch_shape)
        for name, part in self.parts.items():
            setattr(new, name, change(part))
        for name, tensor in (*new._parameters.items(), *new._buffers.items()):
            if tensor is not None and name != "active_dims" and tensor.ndim > depth:
                tensor.data = change(tensor.data)
        return new


class ColumnKernel(BatchKernel):
    """``base_kernel`` over the given columns, among which its own ``active_dims`` are counted.

    The given kernel is not modified, so that several models can share it and its owner can read the
    learned parameters from it.

    Args:
        base_kernel: Any kernel.
        columns: The columns of the input that are passed to ``base_kernel``, in this order.

    Raises:
        InputDataError: if an input is NaN or infinite in these columns.
    """

    def __init__(self, base_kernel: Kernel, columns: Sequence[int]):
        super().__init__(active_dims=tuple(columns))
        self.base_kernel = base_kernel

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        """Return the base kernel's covariances of inputs that have only the given columns."""
        check_finite("inputs", x1)
        check_finite("inputs", x2)
        return self.base_kernel(x1, x2, diag=diag, **params)
