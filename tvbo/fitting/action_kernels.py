"""Kernels over the actions of a log, with initial values and units that suit it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.kernels import CategoricalKernel
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

from tvbo.fitting.dataset import outcome_unit

SMALLEST_COLUMN = 1e-300
"""Smallest standard deviation of an action column; lengthscales may be much smaller."""


def times_factor(kernel: Kernel, factor: float) -> Kernel:
    """Return ``factor`` times a kernel, which is shared; the factor is not learned."""
    scaled = ScaleKernel(kernel, outputscale_constraint=Positive(transform=None)).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


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

    Raises:
        InputDataError: if a standard deviation is too large or too small for double precision.
    """
    columns = [column for column in range(actions.shape[-1]) if column not in categories]
    parts: list[Kernel] = []
    if columns:
        numbers = base(
            ard_num_dims=len(columns),
            active_dims=tuple(columns) if categories else None,
            lengthscale_constraint=_positive(),
        ).double()
        numbers.lengthscale = _spread(actions[:, columns])
        parts.append(numbers)
    if categories:
        labels = CategoricalKernel(
            ard_num_dims=len(categories),
            active_dims=tuple(categories),
            lengthscale_constraint=_positive(),
        ).double()
        labels.lengthscale = torch.ones(len(categories), dtype=torch.float64)
        parts.append(labels)
    kernel = ScaleKernel(
        parts[0] if len(parts) == 1 else ProductKernel(*parts), outputscale_constraint=_positive()
    ).double()
    unit = outcome_unit(Y)
    kernel.outputscale = (Y / unit).var(correction=0) * unit**2
    return kernel


def _positive() -> Positive:
    return Positive(transform=torch.exp, inv_transform=torch.log)


def _spread(actions: Tensor) -> Tensor:
    """Return the standard deviation of each column, one for a constant column."""
    # Divided by a power of two first, because squares of very large or small numbers overflow.
    exponent = torch.frexp(actions.abs().amax(dim=0)).exponent - 1
    spread = torch.ldexp(torch.ldexp(actions, -exponent).std(dim=0, correction=0), exponent)
    if ((spread > 0) & ((spread < SMALLEST_COLUMN) | (spread > 1 / SMALLEST_COLUMN))).any():
        raise InputDataError(
            f"Expected action columns with standard deviations between {SMALLEST_COLUMN:g} and "
            f"{1 / SMALLEST_COLUMN:g}, or constant ones. Got {spread.tolist()}."
        )
    return torch.where(spread > 0, spread, 1.0)
