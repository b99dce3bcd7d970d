"""The largest of several values, chosen so that rounding does not decide.

Two values that symmetry makes equal differ in their last bits, and differ otherwise on another CPU.
Values within a relative tolerance of the largest one therefore count as tied with it, and a rule
decides between them: the lowest index, or a generator.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

TIE_TOLERANCE = 1e-8
"""Relative tolerance. Rounding in a posterior of float64 stays below 1e-11 of its values, and what
an action loses that is chosen by a tie is at most this share of its value."""


def tied_for_largest(
    values: Tensor, scale: float | None = None, tolerance: float = TIE_TOLERANCE
) -> Tensor:
    """Mark the values that are tied with the largest one.

    Args:
        values: ``batch_shape x n``.
        scale: What the tolerance is relative to. None: the larger of the absolute values of the
            largest value and of the median, so that a largest value near zero does not turn every
            difference into one that counts.
        tolerance: Share of the scale.

    Returns:
        Truth values, ``batch_shape x n``.

    Raises:
        ValueError: if a value is NaN.
    """
    if values.isnan().any():
        raise ValueError(
            f"Expected values that can be compared. Got {int(values.isnan().sum())} of "
            f"{values.numel()} that are NaN."
        )
    largest = values.amax(dim=-1, keepdim=True)
    if scale is None:
        typical = values.median(dim=-1, keepdim=True).values
        size = torch.stack([largest.abs(), typical.abs()]).nan_to_num(posinf=0.0).amax(dim=0)
    else:
        size = scale
    return values >= largest - tolerance * size


def first_largest(
    values: Tensor, scale: float | None = None, tolerance: float = TIE_TOLERANCE
) -> Tensor:
    """Return the lowest index among the values tied for the largest one, ``batch_shape``.

    Arguments and errors as in :func:`tied_for_largest`.
    """
    return tied_for_largest(values, scale, tolerance).to(torch.uint8).argmax(dim=-1)


def any_largest(
    values: Tensor,
    generator: Generator,
    scale: float | None = None,
    tolerance: float = TIE_TOLERANCE,
) -> int:
    """Draw one of the indices tied for the largest value, each with the same probability.

    Args:
        values: ``n``.
        generator: Source of the draw; it advances by the same amount whether there is a tie or not.
        scale: As in :func:`tied_for_largest`.
        tolerance: As in :func:`tied_for_largest`.

    Raises:
        ValueError: as :func:`tied_for_largest`.
    """
    tied = torch.nonzero(tied_for_largest(values, scale, tolerance)).squeeze(-1)
    return int(tied[torch.randint(len(tied), (1,), generator=generator)])
