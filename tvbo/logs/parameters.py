"""Kernels over the actions of a log, with initial values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor


def scaled_kernel(
    base: type[RBFKernel] | type[MaternKernel],
    actions: Tensor,
    Y: Tensor,
    categories: Sequence[int] = (),
) -> Kernel:
    """Return a kernel with a lengthscale per action column and an output scale.

    It is the product of ``base`` over the columns of numbers and BoTorch's
    :class:`~botorch.models.kernels.CategoricalKernel` over those of categories. Initial
    lengthscales are the standard deviation of each column, and one for categories; the initial
    scale is the variance of the outcomes. The raw parameters are logarithms, in which a likelihood
    is closest to quadratic.

    Args:
        base: Class of the kernel over numbers.
        actions: ``n x d``.
        Y: ``n``.
        categories: Columns whose values are numbers of categories.
    """
    numbers = [column for column in range(actions.shape[-1]) if column not in categories]
    parts: list[Kernel] = []
    for kind, columns in ((base, numbers), (CategoricalKernel, list(categories))):
        if columns:
            part = kind(
                ard_num_dims=len(columns),
                active_dims=tuple(columns) if categories else None,
                lengthscale_constraint=positive(),
            ).double()
            spread = actions[:, columns].std(dim=0, correction=0)
            part.lengthscale = torch.where((spread > 0) & (kind is base), spread, 1.0)
            parts.append(part)
    kernel = ScaleKernel(
        parts[0] if len(parts) == 1 else ProductKernel(*parts), outputscale_constraint=positive()
    ).double()
    kernel.outputscale = Y.var(correction=0)
    return kernel


def positive() -> Positive:
    """Return the constraint of a positive parameter that is searched as its logarithm."""
    return Positive(transform=torch.exp, inv_transform=torch.log)
