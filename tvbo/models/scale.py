"""The scale of a model's outcomes and inputs, and changes of it."""

from __future__ import annotations

import math

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import ReversibleInputTransform
from botorch.models.transforms.utils import subset_transform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import Mean
from torch import Tensor

from tvbo.rounding import power_of_two

CONSTANT = 1e-13
"""Standard deviation of outcomes, as a share of the largest outcome, that is rounding error."""

LEAST_DEVIATION = 1e-60
"""Smallest standard deviation of outcomes whose square, and a noise variance divided by that, can
be computed with."""

SIGNAL_TO_NOISE = math.exp(4.0)
"""Assumed ratio of the variance of outcomes to that of their noise while nothing is known of it:
the median of BoTorch's prior over noise."""


def outcome_scale(model: SingleTaskGP) -> tuple[float, float]:
    """Return mean and standard deviation by which outcomes were standardized, else 0 and 1."""
    transform = getattr(model, "outcome_transform", None)
    return (0.0, 1.0) if transform is None else (transform.means.item(), transform.stdvs.item())


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


class UnitCube(ReversibleInputTransform):
    """Scale some columns from given ranges to the unit cube, and leave the others as they are.

    BoTorch's ``Normalize`` with fixed bounds has the same values. It calls
    ``torch.broadcast_shapes``, whose first call in a process imports SymPy, which takes a third of
    a second.

    Args:
        columns: The columns to scale.
        ranges: Lower and upper bounds of columns, ``2 x c`` with ``c`` above the largest of those.
            A column of one value is moved to zero.
    """

    indices: Tensor
    offset: Tensor
    coefficient: Tensor

    def __init__(self, columns: list[int], ranges: Tensor):
        super().__init__()
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True
        self.reverse = False
        self.register_buffer("indices", torch.tensor(columns))
        lower, upper = ranges[:, columns].to(torch.float64).split(1)
        self.register_buffer("offset", lower)
        self.register_buffer("coefficient", torch.where(upper > lower, upper, lower + 1) - lower)

    @subset_transform
    def _transform(self, X: Tensor) -> Tensor:
        return (X - self.offset.to(X)) / self.coefficient.to(X)

    @subset_transform
    def _untransform(self, X: Tensor) -> Tensor:
        return self.coefficient.to(X) * X + self.offset.to(X)
