"""What rounding must not decide: which value is the largest, and whether a variance is zero.

Two values that are equal by symmetry differ in their last bits, and differently on another CPU.
Values within a relative tolerance of the largest one are therefore ties, and a rule chooses among
them: the lowest index, or a random draw. A variance near zero is what is left of larger numbers.
It is therefore raised to a share of its prior variance, and an outcome of a smaller one is refused.
All thresholds are relative, so that they hold in any unit of the outcomes.
"""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import LinearOperator
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


def power_of_two(variance: float) -> float:
    """Return the power of two next to a standard deviation, by which scaling is exact.

    Args:
        variance: The square of the standard deviation. Those in [0.6, 2.4) give 1, so that a kernel
            of variance one, the sum of two of these, and GPyTorch's initial scale ln 2 do. So do 0
            and infinity, which have no order of magnitude.
    """
    if not 0 < variance < math.inf:
        return 1.0
    return math.ldexp(1.0, (math.frexp(variance / 0.6)[1] - 1) // 2)


def scale_of(model: Model) -> float:
    """Return the scale of :func:`variance_of`: what a dense model divides outcomes by, else 1."""
    if isinstance(model, SingleTaskGP) and model.num_outputs == 1 and len(model.batch_shape) == 0:
        transform = getattr(model, "outcome_transform", None)
        return transform.stdvs.item() if isinstance(transform, Standardize) else 1.0
    return 1.0


class FlooredNormal(MultivariateNormal):
    """A normal distribution whose variances were already floored relative to the prior.

    GPyTorch's class raises them to 1e-10, in any unit of the outcomes.
    """

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance matrix."""
        return diagonal(self)


def floored_posterior(
    mean: Tensor, covar: Tensor | LinearOperator, noise: Tensor | None
) -> GPyTorchPosterior:
    """Build a posterior from its mean and its covariance, whose variances were floored.

    Args:
        mean: Means, ``... x q``.
        covar: Covariances, ``... x q x q``, with a diagonal that :func:`floored` gave.
        noise: Noise variances to add, or None.
    """
    covar = to_linear_operator(covar)
    if noise is not None:
        covar = covar.add_diagonal(noise.expand_as(mean))
    return GPyTorchPosterior(FlooredNormal(mean, covar))


def floor_(covar: Tensor, prior: Tensor) -> None:
    """Raise variances to at least :data:`LEAST_VARIANCE` of the prior variances, in place.

    Args:
        covar: Posterior covariances, ``... x q x q``.
        prior: Prior variances, ``... x q``.
    """
    diag = covar.diagonal(dim1=-2, dim2=-1)
    diag.copy_(floored(diag, prior))


def floored(variance: Tensor, prior: Tensor) -> Tensor:
    """Return variances raised to at least :data:`LEAST_VARIANCE` of the prior variances."""
    least = least_variance(prior)
    return torch.where(variance > least, variance, least)


def least_variance(prior: Tensor) -> Tensor:
    """Return the least variances of predictions from their prior variances, in any shape."""
    # Above zero, so that the square root has a gradient also where the prior variance is zero.
    return (LEAST_VARIANCE * prior.detach()).clamp_min(torch.finfo(prior.dtype).tiny)


def diagonal(distribution: MultivariateNormal) -> Tensor:
    """Return the variances of a normal distribution, not floored."""
    variance: Tensor = distribution.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)
    return variance.expand(distribution.mean.shape)


def variance_of(posterior: Posterior, scale: float = 1.0) -> Tensor:
    """Return the variances of a posterior, ``... x q x 1``, floored relative to ``scale²``.

    Args:
        posterior: A posterior of one output, which has a variance.
        scale: Order of magnitude of the prior standard deviation, in the unit of the outcomes.
    """
    distribution = getattr(posterior, "distribution", None)
    if type(distribution) is MultivariateNormal:
        return diagonal(distribution).unsqueeze(-1).clamp_min(LEAST_VARIANCE * scale**2)
    # BoTorch declares no variance for the base class, since not every posterior has one.
    variance: Tensor = posterior.variance  # type: ignore[attr-defined]
    return variance


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
