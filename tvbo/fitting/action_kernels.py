"""Kernels over the actions of a log, with initial values and units that suit it."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
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


def scaled_kernel(base: type[RBFKernel] | type[MaternKernel], actions: Tensor, Y: Tensor) -> Kernel:
    """Return a kernel with a lengthscale per action column and an output scale.

    Their initial values are the standard deviation of each column and the variance of the outcomes.
    The raw parameters are logarithms, in which a likelihood is closest to quadratic.

    Args:
        base: Class of the kernel that is scaled.
        actions: ``n x d``.
        Y: ``n``.

    Raises:
        InputDataError: if a standard deviation is too large or too small for double precision.
    """

    def positive() -> Positive:
        return Positive(transform=torch.exp, inv_transform=torch.log)

    kernel = ScaleKernel(
        base(ard_num_dims=actions.shape[-1], lengthscale_constraint=positive()),
        outputscale_constraint=positive(),
    ).double()
    # Divided by a power of two first, because squares of very large or small numbers overflow.
    exponent = torch.frexp(actions.abs().amax(dim=0)).exponent - 1
    spread = torch.ldexp(torch.ldexp(actions, -exponent).std(dim=0, correction=0), exponent)
    if ((spread > 0) & ((spread < SMALLEST_COLUMN) | (spread > 1 / SMALLEST_COLUMN))).any():
        raise InputDataError(
            f"Expected action columns with standard deviations between {SMALLEST_COLUMN:g} and "
            f"{1 / SMALLEST_COLUMN:g}, or constant ones. Got {spread.tolist()}."
        )
    kernel.base_kernel.lengthscale = torch.where(spread > 0, spread, 1.0)
    unit = outcome_unit(Y)
    kernel.outputscale = (Y / unit).var(correction=0) * unit**2
    return kernel
