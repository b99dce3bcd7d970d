"""What rounding must not decide: which value is the largest, and whether a variance is zero.

Two values that are equal by symmetry differ in their last bits, and differently on another CPU.
Values within a relative tolerance of the largest one are therefore ties, and a rule chooses among
them: the lowest index, or a random draw. A variance near zero is what is left of larger numbers.
It is therefore raised to a least one, and an outcome of a smaller one is refused.
"""

from __future__ import annotations

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from torch import Generator, Tensor

Array = NDArray[np.float64]

TIE_TOLERANCE = 1e-8
"""Relative tolerance of ties. Rounding errors of a posterior in float64 are below 1e-11 of its
values; the loss by choosing another of several ties is at most this share of the value."""

LEAST_VARIANCE = 1e-10
"""Least variance of a prediction of standardized outcomes, as in GPyTorch."""

CERTAIN = 1e-13
"""Share of its prior variance below which the variance of an outcome is numerically zero."""


def tied_for_largest(values: Tensor) -> Tensor:
    """Return a mask of the values tied with the largest one.

    The tolerance is relative to the larger of the absolute values of the largest value and of the
    median, so that ties are found where the largest value is near zero.

    Args:
        values: ``batch_shape x n``.

    Returns:
        A mask, ``batch_shape x n``.

    Raises:
        ValueError: if a value is NaN.
    """
    # One after the other, since PyTorch's pass for both takes ten times as long.
    smallest, largest = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    if largest.isnan().any():
        raise ValueError(
            f"Expected values that can be compared. Got {int(values.isnan().sum())} of "
            f"{values.numel()} that are NaN."
        )
    tied = values >= largest - TIE_TOLERANCE * torch.maximum(largest.abs(), smallest.abs())
    if (tied.count_nonzero(dim=-1) != 1).any():
        # The median takes longer than all else, and is no larger than these.
        typical = values.median(dim=-1, keepdim=True).values
        size = torch.stack([largest.abs(), typical.abs()]).nan_to_num(posinf=0.0).amax(dim=0)
        tied = values >= largest - TIE_TOLERANCE * size
    return tied


def argmax(values: Tensor, generator: Generator | None = None) -> Tensor:
    """Return the index of the largest value, ``batch_shape``.

    Args:
        values: ``batch_shape x n``; with a generator ``n``.
        generator: Of values that are tied, one is drawn uniformly; it advances by the same amount
            with and without a tie. None takes the first.

    Raises:
        ValueError: if a value is NaN.
    """
    tied = tied_for_largest(values)
    if generator is None:
        return tied.to(torch.uint8).argmax(dim=-1)
    places = tied.nonzero().squeeze(-1)
    return places[torch.randint(len(places), (), generator=generator)]


def check_uncertain(variance: Tensor | Array, prior_variance: Tensor | Array) -> None:
    """Raise if the variance of an outcome given all earlier ones is numerically zero.

    Args:
        variance: Variances of outcomes, any shape.
        prior_variance: Prior variances of the function, in the same shape.

    Raises:
        InputDataError: if one is.
    """
    if (variance <= CERTAIN * prior_variance).any():
        raise InputDataError(
            "Expected outcomes that are not certain already. Got one whose variance is zero to "
            "rounding: a repeat without noise, or a covariance that is not positive semi-definite."
        )
