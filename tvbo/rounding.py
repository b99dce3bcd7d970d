"""What rounding must not decide: which value is the largest, and whether a variance is zero.

Two values that are equal by symmetry differ in their last bits, and differently on another CPU.
Values within a relative tolerance of the largest one are therefore ties, and a rule chooses among
them: the lowest index, or a random draw. A variance near zero is what is left of larger numbers.
It is therefore raised to a share of its prior variance, and an outcome of a smaller one is refused.
All thresholds are relative, so that they hold in any unit of the outcomes.
"""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

TIE_TOLERANCE = 1e-8
"""Relative tolerance of ties. Rounding errors of a posterior in float64 are below 1e-11 of its
values; the loss by choosing another of several ties is at most this share of the value."""

LEAST_VARIANCE = 1e-10
"""Least variance of a prediction, as a share of its prior variance. GPyTorch uses the same number
as an absolute variance."""

CERTAIN = 1e-13
"""Share of its prior variance below which the variance of an outcome is numerically zero."""


def tied_for_largest(
    values: Tensor, scale: float | None = None, tolerance: float = TIE_TOLERANCE
) -> Tensor:
    """Return a mask of the values tied with the largest one.

    Args:
        values: ``batch_shape x n``.
        scale: Number that the tolerance is relative to. None is the larger of the absolute values
            of the largest value and of the median, so that ties are found where the largest value
            is near zero.
        tolerance: Share of the scale.

    Returns:
        A mask, ``batch_shape x n``.

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
        size = torch.full_like(largest, scale)
    return values >= largest - tolerance * size


def first_largest(
    values: Tensor, scale: float | None = None, tolerance: float = TIE_TOLERANCE
) -> Tensor:
    """Return the lowest index among the values tied for the largest one, ``batch_shape``.

    Args:
        values: ``batch_shape x n``.
        scale: Number that the tolerance is relative to; default as in :func:`tied_for_largest`.
        tolerance: Share of the scale.

    Raises:
        ValueError: if a value is NaN.
    """
    return tied_for_largest(values, scale, tolerance).to(torch.uint8).argmax(dim=-1)


def any_largest(
    values: Tensor,
    generator: Generator,
    scale: float | None = None,
    tolerance: float = TIE_TOLERANCE,
) -> int:
    """Return an index drawn uniformly from those tied for the largest value.

    Args:
        values: ``n``.
        generator: Source of the draw; it advances by the same amount with and without a tie.
        scale: Number that the tolerance is relative to; default as in :func:`tied_for_largest`.
        tolerance: Share of the scale.

    Raises:
        ValueError: if a value is NaN.
    """
    tied = torch.nonzero(tied_for_largest(values, scale, tolerance)).squeeze(-1)
    return int(tied[torch.randint(len(tied), (1,), generator=generator)])


def innovation_root(covar: Tensor, noise: Tensor, prior_variance: Tensor) -> Tensor:
    """Return the Cholesky factor of the covariance of new outcomes given all earlier ones.

    Args:
        covar: Posterior covariances of the function, ``... x q x q``.
        noise: Noise variances of the new outcomes, ``... x q``.
        prior_variance: Prior variances of the function, ``... x q``.

    Returns:
        ``... x q x q``, lower triangular.

    Raises:
        InputDataError: if the predictive variance of an outcome is numerically zero.
    """
    root, info = torch.linalg.cholesky_ex(covar + torch.diag_embed(noise))
    certain = root.diagonal(dim1=-2, dim2=-1).square() <= CERTAIN * prior_variance
    if (info > 0).any() or certain.any():
        raise InputDataError(
            "Expected outcomes that are not certain already. Got one whose variance is zero to "
            "rounding: a repeat without noise, or a covariance that is not positive semi-definite."
        )
    factor: Tensor = root
    return factor
