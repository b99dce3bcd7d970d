"""A fitted model's kernel and mean over whole rows, in units of raw inputs and outcomes."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputTransform
from gpytorch.kernels import Kernel
from gpytorch.means import Mean, ZeroMean
from torch import Size, Tensor

from tvbo.models.scale import outcome_scale


class RawRowKernel(Kernel):
    """The kernel of a model, with its transforms of inputs and outcomes undone.

    Args:
        model: A model of one output, in eval mode; its kernel is shared, not copied.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, or an outcome transform
            other than ``Standardize``.
    """

    def __init__(self, model: SingleTaskGP):
        super().__init__()
        check_one_output(model)
        self.covar_module = model.covar_module
        self.input_transform = getattr(model, "input_transform", None)
        self.register_buffer("scale", torch.tensor(outcome_scale(model)[1], dtype=torch.float64))

    @property
    def batch_shape(self) -> Size:
        """Batch shape of the model's kernel; GPyTorch would search all inner kernels each time."""
        shape: Size = self.covar_module.batch_shape
        return shape

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def is_stationary(self) -> bool:
        """Whether the model's kernel is stationary."""
        return bool(self.covar_module.is_stationary)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of rows ``... x d``."""
        inputs = [transformed(self.input_transform, x) for x in (x1, x2)]
        covar: Tensor = self.covar_module(*inputs, diag=diag, **params) * self.scale**2
        return covar


class RawMean(Mean):
    """The mean of a model over whole rows, in units of raw outcomes.

    Args:
        model: A model of one output, in eval mode; its mean is shared, not copied.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, model: SingleTaskGP):
        super().__init__()
        self.mean_module = model.mean_module
        self.input_transform = getattr(model, "input_transform", None)
        for name, value in zip(("shift", "scale"), outcome_scale(model), strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the means ``...`` of rows ``... x d``."""
        mean: Tensor = self.mean_module(transformed(self.input_transform, x))
        return self.shift + self.scale * mean


def has_zero_mean(model: SingleTaskGP) -> bool:
    """Return whether the prior mean is zero in raw units."""
    return isinstance(model.mean_module, ZeroMean) and outcome_scale(model)[0] == 0


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
