"""A fitted model's kernels and mean, in units of raw inputs and outcomes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from gpytorch.means import Mean, ZeroMean
from torch import Tensor

from tvbo.kernels.batch import BatchKernel, ColumnKernel
from tvbo.models.scale import outcome_scale
from tvbo.models.time_varying_gp import TimeVaryingGP


class ScaledKernel(BatchKernel):
    """A kernel of outcomes in another unit, and of rows before a transform.

    Args:
        base_kernel: The kernel; it is shared, not copied.
        scale: The unit of its outcomes in the other one.
        input_transform: What rows go through; None is nothing.
    """

    scale: Tensor

    def __init__(
        self, base_kernel: Kernel, scale: float, input_transform: InputTransform | None = None
    ):
        super().__init__()
        self.base_kernel = base_kernel
        self.input_transform = input_transform
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    @property
    def outputscale(self) -> Tensor:
        """What the covariances are multiplied by."""
        return self.scale.square()

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of rows ``... x d``."""
        inputs = [transformed(self.input_transform, x) for x in (x1, x2)]
        return self.base_kernel(*inputs, diag=diag, **params) * self.scale**2


class ScaledMean(Mean):
    """A mean of outcomes in another unit, and of rows before a transform.

    Args:
        mean_module: The mean; it is shared, not copied.
        shift: Zero of its outcomes in the other unit.
        scale: The unit of its outcomes in the other one.
        input_transform: What rows go through; None is nothing.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        mean_module: Mean,
        shift: float,
        scale: float,
        input_transform: InputTransform | None = None,
    ):
        super().__init__()
        self.mean_module, self.input_transform = mean_module, input_transform
        for name, value in (("shift", shift), ("scale", scale)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the means ``...`` of rows ``... x d``."""
        mean: Tensor = self.mean_module(transformed(self.input_transform, x))
        return self.shift + self.scale * mean


def times_factor(kernel: Kernel, factor: float) -> Kernel:
    """Return ``factor`` times a kernel, which is shared; the factor is not learned."""
    # A transform of the parameter would round it.
    positive, shape = GreaterThan(0.0, transform=None), kernel.batch_shape
    scaled = ScaleKernel(kernel, batch_shape=shape, outputscale_constraint=positive).double()
    scaled.outputscale = torch.tensor(factor, dtype=torch.float64)
    scaled.raw_outputscale.requires_grad_(False)
    return scaled


def raw_row_kernel(model: SingleTaskGP) -> ScaledKernel:
    """Return the kernel of a model in eval mode, over raw rows, of raw outcomes.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, or an outcome transform
            other than ``Standardize``.
    """
    check_one_output(model)
    transform = getattr(model, "input_transform", None)
    return ScaledKernel(model.covar_module, outcome_scale(model)[1], transform)


def raw_mean(model: SingleTaskGP) -> ScaledMean | None:
    """Return the mean of a model in eval mode, over raw rows, of raw outcomes; None if zero."""
    shift, scale = outcome_scale(model)
    if isinstance(model.mean_module, ZeroMean) and shift == 0:
        return None
    return ScaledMean(model.mean_module, shift, scale, getattr(model, "input_transform", None))


def raw_noise_variance(model: SingleTaskGP) -> float:
    """Return a model's noise variance in squared units of raw outcomes; if fixed, their mean."""
    noise = model.likelihood.noise
    if noise.numel() == 0:
        # Fixed for each observation, and there are none yet.
        return 0.0
    return float((noise.mean() * outcome_scale(model)[1] ** 2).item())


def transformed(input_transform: InputTransform | None, rows: Tensor) -> Tensor:
    """Return rows as they are passed to the kernel of the model."""
    return rows if input_transform is None else input_transform(rows)


def check_one_output(model: SingleTaskGP) -> None:
    """Raise unless the hyperparameters of the model can be stated in raw units.

    Raises:
        UnsupportedError: if it has a batch, more than one output, or an outcome transform other
            than ``Standardize``.
    """
    if model.num_outputs > 1 or len(model.batch_shape) > 0:
        raise UnsupportedError(
            "Expected a model of one output and no batch. "
            f"Got {model.num_outputs} outputs, batch_shape={tuple(model.batch_shape)}."
        )
    transform = getattr(model, "outcome_transform", None)
    if transform is not None and not isinstance(transform, Standardize):
        raise UnsupportedError(
            f"Expected Standardize or no outcome transform. Got {type(transform).__name__}."
        )


class RawActionKernel(ScaledKernel):
    """The same of a kernel over rows ``[action | time]``, as a kernel over actions."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of actions ``... x d``."""
        return super().forward(with_time(x1, 0.0), with_time(x2, 0.0), diag=diag, **params)


def with_time(x: Tensor, t: float) -> Tensor:
    """Return actions ``... x d`` as rows ``[action | time]`` at a time."""
    return torch.cat([x, x.new_full((*x.shape[:-1], 1), t)], dim=-1)


def raw_kernels(model: TimeVaryingGP) -> tuple[list[Kernel], list[Kernel]]:
    """Return the kernels over actions and over time of a model that a finite set can use.

    Args:
        model: A model of one output whose rows are ``[action | time]``, in eval mode.

    Returns:
        One kernel over actions, or as many as over time; and those over time, some of them scaled,
        without ``active_dims``.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, no time column, an outcome
            transform other than ``Standardize``, or an input transform that changes time.
    """
    check_one_output(model)
    if model.time_feature is None:
        raise UnsupportedError("Expected a model with a time column. Got one without.")
    kernel, input_transform = model.covar_module, getattr(model, "input_transform", None)
    products = list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]
    width = products[0].kernels[0].active_dims.numel()
    # Two times, because a transform may leave one of them unchanged.
    rows = torch.zeros(2, width + 1, dtype=torch.float64)
    rows[:, -1] = torch.tensor([0.0, 1.0])
    seen = transformed(input_transform, rows)
    if model.time_feature != width or (seen[:, -1] != rows[:, -1]).any():
        raise UnsupportedError(
            "Expected rows [action | time] and no transform of time. "
            f"Got time in column {model.time_feature} of {width + 1}."
        )
    over_actions: list[Kernel] = []
    over_time: list[Kernel] = []
    for product in products:
        over_action, factor = product.kernels
        scale = outcome_scale(model)[1]
        over_actions.append(RawActionKernel(over_action, scale, input_transform))
        terms = factor.kernels if isinstance(factor, AdditiveKernel) else [factor]
        over_time += [_without_column(term) for term in terms]
    return over_actions, over_time


def _without_column(kernel: Kernel) -> Kernel:
    """Return a copy of a temporal kernel, scaled or not, that does not know its column."""
    new = deepcopy(kernel.base_kernel if isinstance(kernel, ColumnKernel) else kernel)
    if isinstance(new, ScaleKernel):
        new.base_kernel = _without_column(new.base_kernel)
    new.active_dims = None
    return new
