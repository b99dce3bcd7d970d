"""Each public kernel, and what it is used in, as a function of batch shape and columns."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Size

from tvbo.kernels import (
    ConstantTemporalKernel,
    ContextActionKernel,
    CovarianceMatrixKernel,
    IdentityKernel,
    SeasonalKernel,
    TaskKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.batch import ColumnKernel
from tvbo.models.time_varying_gp import make_drifting_kernel

NUM_INDICES = 4
STEP = 0.02


@dataclass(frozen=True)
class Case:
    """A kernel to be made.

    Args:
        make: Of the columns that it sees, or None for all, and its batch shape.
        width: Number of columns that it sees; None if it takes any number.
        kind: Values that its columns may have: ``"real"``, or ``"index"`` for the integers from 0
            to 3.
        has_gradient: Whether it has a gradient in its inputs.
    """

    make: Callable[[list[int] | None, Size], Kernel]
    width: int | None = 1
    kind: str = "real"
    has_gradient: bool = True

    def kernel(self, columns=None, batch_shape=()):
        """Return the kernel, with other parameters in each element of the batch."""
        batch_shape = Size(batch_shape)
        kernel = self.make(columns, batch_shape)
        step = STEP * torch.arange(batch_shape.numel()).reshape(batch_shape)
        for parameter in kernel.parameters():
            if batch_shape and parameter.shape[: len(batch_shape)] == batch_shape:
                tail = [1] * (parameter.ndim - len(batch_shape))
                parameter.data.add_(step.reshape(*batch_shape, *tail))
        return kernel

    def rows(self, *shape, generator=None, width=None, dtype=None):
        """Return rows ``shape x width`` that the kernel takes."""
        shape = (*shape, width or self.width or 2)
        if self.kind == "index":
            drawn = torch.randint(NUM_INDICES, shape, generator=generator)
        else:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(dtype or torch.get_default_dtype())


def of(kind, *args, **kwargs):
    """A kernel class that takes GPyTorch's ``active_dims`` and ``batch_shape``."""
    return lambda columns, batch_shape: kind(
        *args, active_dims=columns, batch_shape=batch_shape, **kwargs
    )


def _matrix(columns, batch_shape):
    place = torch.arange(NUM_INDICES, dtype=torch.float64)
    covar = torch.exp(-(place - place.unsqueeze(-1)).abs() / 2)
    scale = 1 + torch.arange(batch_shape.numel()).reshape(*batch_shape, 1, 1)
    return CovarianceMatrixKernel(
        (scale * covar).to(torch.get_default_dtype()), active_dims=columns
    )


def _column(columns, batch_shape):
    return ColumnKernel(RBFKernel(batch_shape=batch_shape), columns or [0, 1])


def _context_action(structure):
    def make(columns, batch_shape):
        columns = columns or [0, 1]
        return ContextActionKernel(
            RBFKernel(batch_shape=batch_shape),
            MaternKernel(batch_shape=batch_shape),
            structure,
            action_features=columns[:1],
            context_features=columns[1:],
        )

    return make


def _product(columns, batch_shape):
    x, t = columns or [0, 1]
    over_x = ColumnKernel(RBFKernel(batch_shape=batch_shape), [x])
    return over_x * TemporalDecayKernel(active_dims=[t], batch_shape=batch_shape)


def _sum(columns, batch_shape):
    kinds = TemporalDecayKernel, ConstantTemporalKernel
    return AdditiveKernel(*(k(active_dims=columns, batch_shape=batch_shape) for k in kinds))


def _two_parts(columns, batch_shape):
    x, t = columns or [0, 1]
    temporal = [TemporalDecayKernel(batch_shape=batch_shape), TemporalMaternKernel()]
    return make_drifting_kernel(RBFKernel(), temporal, [x], t, batch_shape)


def _two_products(columns, batch_shape):
    x, t = columns or [0, 1]
    temporal = [TemporalDecayKernel(batch_shape=batch_shape), SeasonalKernel(7.0)]
    over_x = [RBFKernel(batch_shape=batch_shape), MaternKernel()]
    return make_drifting_kernel(over_x, temporal, [x], t, batch_shape)


def _scaled(columns, batch_shape):
    inner = TemporalDecayKernel(active_dims=columns, batch_shape=batch_shape)
    return ScaleKernel(inner, batch_shape=batch_shape)


CASES = {
    "ColumnKernel": Case(_column, width=2),
    "ConstantTemporalKernel": Case(of(ConstantTemporalKernel), has_gradient=False),
    "ContextActionKernel": Case(_context_action("product"), width=2),
    "ContextActionKernel, additive": Case(_context_action("additive"), width=2),
    "ContextActionKernel, both": Case(_context_action("both"), width=2),
    "CovarianceMatrixKernel": Case(_matrix, kind="index", has_gradient=False),
    "IdentityKernel": Case(of(IdentityKernel), width=None, has_gradient=False),
    "SeasonalKernel": Case(of(SeasonalKernel, 3.0)),
    "TaskKernel": Case(of(TaskKernel, NUM_INDICES, rank=2), kind="index", has_gradient=False),
    "TemporalDecayKernel": Case(of(TemporalDecayKernel)),
    "TemporalMaternKernel, 3/2": Case(of(TemporalMaternKernel, 1.5)),
    "TemporalMaternKernel, 5/2": Case(of(TemporalMaternKernel, 2.5)),
    "ScaleKernel(TemporalDecayKernel)": Case(_scaled),
    "RBFKernel * TemporalDecayKernel": Case(_product, width=2),
    "TemporalDecayKernel + ConstantTemporalKernel": Case(_sum),
    "RBFKernel * (two temporal kernels)": Case(_two_parts, width=2),
    "two products with temporal kernels": Case(_two_products, width=2),
}
"""The public kernels, and products and sums as the models make them."""
