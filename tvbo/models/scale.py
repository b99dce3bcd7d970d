"""The scale of a model's outcomes, and what is floored or refused relative to it."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from torch import Tensor

LEAST_VARIANCE = 1e-10
"""Least variance of a prediction, as a share of its prior variance. GPyTorch uses the same number
as an absolute variance."""

CERTAIN = 1e-13
"""Share of its prior variance below which the variance of an outcome is numerically zero."""

CONSTANT = 1e-13
"""Standard deviation of outcomes, as a share of the largest outcome, that is rounding error."""

LEAST_DEVIATION = 1e-60
"""Smallest standard deviation of outcomes whose square, and a noise variance divided by that, can
be computed with."""

SIGNAL_TO_NOISE = math.exp(4.0)
"""Assumed ratio of the variance of outcomes to that of their noise while nothing is known of it:
the median of BoTorch's prior over noise."""


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


def scale_from_noise(Yvar: Tensor | None, noise_variance: float | None) -> float | None:
    """Return the order of the outcomes' standard deviation that their noise suggests.

    Args:
        Yvar: Noise variances of the outcomes, or None.
        noise_variance: Noise variance where there are no outcomes with their own, or None.

    Returns:
        A power of two; None where no noise is known.
    """
    if Yvar is not None and len(Yvar) > 0:
        noise_variance = Yvar.mean().item()
    return None if noise_variance is None else power_of_two(SIGNAL_TO_NOISE * noise_variance)


class FlooredNormal(MultivariateNormal):
    """A normal distribution whose variances were already floored relative to the prior.

    GPyTorch's class raises them to 1e-10, in any unit of the outcomes.
    """

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance matrix."""
        return diagonal(self)


def floored_posterior(mean: Tensor, covar: Tensor, noise: Tensor | None) -> GPyTorchPosterior:
    """Build a posterior from its mean and its covariance, whose variances were floored.

    Args:
        mean: Means, ``... x q``.
        covar: Covariances, ``... x q x q``, with the diagonal that :func:`floor_` set.
        noise: Noise variances to add, or None.
    """
    if noise is not None:
        covar = covar + torch.diag_embed(noise.expand_as(mean))
    return GPyTorchPosterior(FlooredNormal(mean, to_linear_operator(covar)))


def floor_(covar: Tensor, prior: Tensor) -> None:
    """Raise variances to at least :data:`LEAST_VARIANCE` of the prior variances, in place.

    Args:
        covar: Posterior covariances, ``... x q x q``.
        prior: Prior variances, ``... x q``.
    """
    # Above zero, so that the square root has a gradient also where the prior variance is zero.
    least = (LEAST_VARIANCE * prior.detach()).clamp_min(torch.finfo(prior.dtype).tiny)
    diag = covar.diagonal(dim1=-2, dim2=-1)
    diag.copy_(torch.where(diag > least, diag, least))


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


def outcome_scale(model: SingleTaskGP) -> tuple[float, float]:
    """Return mean and standard deviation by which outcomes were standardized, else 0 and 1."""
    transform = getattr(model, "outcome_transform", None)
    return (0.0, 1.0) if transform is None else (transform.means.item(), transform.stdvs.item())


def scale_of(model: Model) -> float:
    """Return the number by which a dense model divides outcomes; 1 for any other model."""
    if isinstance(model, SingleTaskGP) and model.num_outputs == 1 and len(model.batch_shape) == 0:
        transform = getattr(model, "outcome_transform", None)
        return transform.stdvs.item() if isinstance(transform, Standardize) else 1.0
    return 1.0


class RelativeStandardize(Standardize):
    """Standardize outcomes of any magnitude, also a single one.

    Outcomes that are equal up to rounding or :data:`LEAST_DEVIATION`, and a single outcome, are
    centred and divided by ``unit``.

    Args:
        unit: Standard deviation to assume in that case, in the unit of the outcomes; None assumes
            the order of magnitude of the outcomes.
    """

    def __init__(self, unit: float | None):
        super().__init__(m=1, min_stdv=0.0)
        self.unit = unit

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return standardized outcomes and noise variances, as in BoTorch."""
        if self.training and Y.shape[-2] > 0:
            super().forward(Y)
            least = max(LEAST_DEVIATION, CONSTANT * Y.abs().max().item())
            equal = Y.shape[-2] == 1 or self.stdvs.item() <= least
            unit = power_of_two(Y.square().mean().item()) if self.unit is None else self.unit
            self._set(self.means, unit if equal else self.stdvs)
        elif self.training:
            self._set(0.0, 1.0 if self.unit is None else self.unit)
        return (Y - self.means) / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq

    def _set(self, means: Tensor | float, stdvs: Tensor | float) -> None:
        self.means = torch.as_tensor(means, dtype=torch.float64).reshape(1, 1)
        self.stdvs = torch.as_tensor(stdvs, dtype=torch.float64).reshape(1, 1)
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)


class FixedScale(RelativeStandardize):
    """Divide outcomes by a fixed number.

    Args:
        unit: The number; division by a power of two is exact.
    """

    def __init__(self, unit: float):
        super().__init__(unit)
        self._set(0.0, unit)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return divided outcomes and noise variances, as in BoTorch."""
        return Y / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq


class ScaledMean(Mean):
    """A prior mean, stated in the user's unit, in another unit.

    Args:
        mean_module: The mean in the user's unit.
        unit: The other unit, in the user's.
    """

    def __init__(self, mean_module: Mean, unit: float):
        super().__init__()
        self.mean_module = mean_module
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Return the means ``...`` of rows ``... x d``."""
        mean: Tensor = self.mean_module(x)
        return mean / self.unit


def in_unit(covar_module: Kernel, unit: float) -> Kernel:
    """Return a kernel, stated in the user's unit, in another unit; it is not changed itself."""
    if unit == 1.0:
        return covar_module
    scaled = ScaleKernel(
        covar_module,
        batch_shape=covar_module.batch_shape,
        # A transform of the parameter would round it.
        outputscale_constraint=GreaterThan(0.0, transform=None),
    ).to(torch.float64)
    scaled.outputscale = unit**-2
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def unit_cube(columns: list[int], ranges: Tensor, num_columns: int) -> Normalize:
    """Return a transform of some columns to the unit cube, which leaves the others raw.

    Args:
        columns: The columns.
        ranges: Lower and upper bounds, ``2 x c`` with ``c`` above the largest of them.
        num_columns: Number of all columns.
    """
    bounds = torch.zeros(2, num_columns, dtype=torch.float64)
    bounds[1] = 1.0
    lower, upper = ranges[:, columns]
    bounds[:, columns] = torch.stack([lower, torch.where(upper > lower, upper, lower + 1)])
    return Normalize(num_columns, indices=columns, bounds=bounds)
