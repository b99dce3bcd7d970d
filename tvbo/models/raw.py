"""A fitted model's kernel and mean over whole rows, in the units of raw inputs and outcomes."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from gpytorch.kernels import Kernel
from gpytorch.means import Mean, ZeroMean
from torch import Size, Tensor


class RawRowKernel(Kernel):
    """The kernel of a model, its transforms of inputs and outcomes undone.

    Args:
        model: A model of one output, in eval mode; its parts are shared, not copied.

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
        """As the model's kernel. GPyTorch would look through every kernel inside, each time."""
        return self.covar_module.batch_shape

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def is_stationary(self) -> bool:
        """As the model's."""
        return self.covar_module.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        """Covariances of rows, ``... x d``."""
        inputs = [transformed(self.input_transform, x) for x in (x1, x2)]
        return self.covar_module(*inputs, diag=diag, **params) * self.scale**2


class RawMean(Mean):
    """The mean of a model over whole rows, in units of raw outcomes.

    Args:
        model: As in :class:`RawRowKernel`.
    """

    def __init__(self, model: SingleTaskGP):
        super().__init__()
        self.mean_module = model.mean_module
        self.input_transform = getattr(model, "input_transform", None)
        for name, value in zip(("shift", "scale"), outcome_scale(model), strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Means of rows, ``...``."""
        return self.shift + self.scale * self.mean_module(transformed(self.input_transform, x))


def has_zero_mean(model: SingleTaskGP) -> bool:
    """Whether the mean is zero in raw units."""
    return isinstance(model.mean_module, ZeroMean) and outcome_scale(model)[0] == 0


def raw_noise_variance(model: SingleTaskGP) -> float:
    """The noise variance of a model, in squared units of raw outcomes; its mean, if fixed."""
    noise = model.likelihood.noise
    if noise.numel() == 0:
        # Fixed for each observation, of which there are none yet.
        return 0.0
    return (noise.mean() * outcome_scale(model)[1] ** 2).item()


def outcome_scale(model: SingleTaskGP) -> tuple[float, float]:
    """Mean and standard deviation by which outcomes were standardized; 0 and 1 if they were not."""
    if not hasattr(model, "outcome_transform"):
        return 0.0, 1.0
    return model.outcome_transform.means.item(), model.outcome_transform.stdvs.item()


def scale_of(model: Model) -> float:
    """By how much a dense model divides outcomes, as a measure of their size; 1 for any other."""
    if isinstance(model, SingleTaskGP) and model.num_outputs == 1 and len(model.batch_shape) == 0:
        transform = getattr(model, "outcome_transform", None)
        return transform.stdvs.item() if isinstance(transform, Standardize) else 1.0
    return 1.0


def transformed(input_transform, rows: Tensor) -> Tensor:
    """Rows as the kernel of the model sees them."""
    return rows if input_transform is None else input_transform(rows)


def check_one_output(model: SingleTaskGP) -> None:
    """Raise unless the model's hyperparameters carry over to a posterior in raw units.

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
