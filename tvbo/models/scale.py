"""The scale of a model's outcomes, and posteriors whose rounding is judged by it."""

from __future__ import annotations

import math

import torch
from botorch.models.transforms import Standardize
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.constraints import GreaterThan
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_linear_operator
from torch import Tensor

LEAST_VARIANCE = 1e-10
"""Least variance of a prediction, as a share of its prior variance. GPyTorch has the same number
as an absolute one."""

CONSTANT = 1e-13
"""Standard deviation of outcomes, as a share of the largest, below which it is rounding."""

LEAST_DEVIATION = 1e-60
"""Standard deviation of outcomes below which its square, and a noise variance divided by that,
could not be computed with."""

SIGNAL_TO_NOISE = math.exp(4.0)
"""Variance of outcomes as a multiple of that of their noise, as long as nothing else is known of
it: the median of BoTorch's prior over noise."""


def power_of_two(variance: float) -> float:
    """A power of two of the order of a standard deviation: scaling by it rounds nothing.

    Args:
        variance: Its square. Those in [0.6, 2.4) give 1: a kernel of variance one, the sum of two,
            and GPyTorch's initial scale ln 2. So do 0 and infinity, which have no order.
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
    """A normal distribution whose variances were floored relative to the prior.

    GPyTorch's raises them to 1e-10, whatever the unit of the outcomes.
    """

    @property
    def variance(self) -> Tensor:
        """The diagonal of the covariance matrix."""
        return diagonal(self)


def floored_posterior(mean: Tensor, covar: Tensor, noise: Tensor | None) -> GPyTorchPosterior:
    """A posterior from its mean ``... x q`` and covariance ``... x q x q``, already floored.

    Args:
        mean: Means.
        covar: Covariances, whose diagonal :func:`floor_` has treated.
        noise: Noise variances to add, or None.
    """
    if noise is not None:
        covar = covar + torch.diag_embed(noise.expand_as(mean))
    return GPyTorchPosterior(FlooredNormal(mean, to_linear_operator(covar)))


def floor_(covar: Tensor, prior: Tensor) -> None:
    """Raise variances to :data:`LEAST_VARIANCE` of the prior's, in place.

    Args:
        covar: Posterior covariances, ``... x q x q``.
        prior: Prior variances, ``... x q``.
    """
    # Above zero, so that a root has a gradient where the prior itself is certain.
    least = (LEAST_VARIANCE * prior.detach()).clamp_min(torch.finfo(prior.dtype).tiny)
    diag = covar.diagonal(dim1=-2, dim2=-1)
    diag.copy_(torch.where(diag > least, diag, least))


def diagonal(distribution: MultivariateNormal) -> Tensor:
    """Variances of a normal distribution as they are, however small."""
    variance = distribution.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)
    return variance.expand(distribution.mean.shape)


def variance_of(posterior: Posterior, scale: float = 1.0) -> Tensor:
    """Variances of a posterior, ``... x q x 1``, at least :data:`LEAST_VARIANCE` of ``scale²``.

    Args:
        posterior: Of one output.
        scale: Prior standard deviation of the outcomes, in their unit, by its order of magnitude.
    """
    distribution = getattr(posterior, "distribution", None)
    if isinstance(distribution, FlooredNormal):
        return posterior.variance
    if type(distribution) is MultivariateNormal:
        return diagonal(distribution).unsqueeze(-1).clamp_min(LEAST_VARIANCE * scale**2)
    return posterior.variance


class RelativeStandardize(Standardize):
    """Standardize outcomes of any magnitude, one outcome included.

    Where they are alike to rounding or to :data:`LEAST_DEVIATION`, or where there is only one, they
    are centred, and divided by ``unit``.

    Args:
        unit: Standard deviation to assume then, in the unit of the outcomes; None is of the order
            of the outcomes themselves.
    """

    def __init__(self, unit: float | None):
        super().__init__(m=1, min_stdv=0.0)
        self.unit = unit

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As in BoTorch."""
        if self.training and Y.shape[-2] > 0:
            super().forward(Y)
            least = max(LEAST_DEVIATION, CONSTANT * Y.abs().max().item())
            alike = Y.shape[-2] == 1 or self.stdvs.item() <= least
            unit = power_of_two(Y.square().mean().item()) if self.unit is None else self.unit
            self._set(self.means, unit if alike else self.stdvs)
        elif self.training:
            self._set(0.0, 1.0 if self.unit is None else self.unit)
        return (Y - self.means) / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq

    def _set(self, means: Tensor | float, stdvs: Tensor | float) -> None:
        self.means = torch.as_tensor(means, dtype=torch.float64).reshape(1, 1)
        self.stdvs = torch.as_tensor(stdvs, dtype=torch.float64).reshape(1, 1)
        self._stdvs_sq = self.stdvs.square()
        self._is_trained = torch.tensor(True)


class FixedScale(RelativeStandardize):
    """Divide outcomes by a number that is not learned from them.

    Args:
        unit: The number; a power of two rounds nothing.
    """

    def __init__(self, unit: float):
        super().__init__(unit)
        self._set(0.0, unit)

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As in BoTorch."""
        return Y / self.stdvs, None if Yvar is None else Yvar / self._stdvs_sq


class ScaledMean(Mean):
    """A prior mean in the user's unit, in another one.

    Args:
        mean_module: The mean.
        unit: In which the result is.
    """

    def __init__(self, mean_module: Mean, unit: float):
        super().__init__()
        self.mean_module = mean_module
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Means of rows, ``...``."""
        return self.mean_module(x) / self.unit


def in_unit(covar_module: Kernel, unit: float) -> Kernel:
    """A kernel in the user's unit, in another one; its own parameters stay what they are."""
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
