"""A fitted model's kernel and mean, in the units of raw actions and outcomes."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Standardize
from gpytorch.kernels import Kernel
from gpytorch.means import Mean, ZeroMean
from torch import Tensor

from tvbo.models.time_varying_gp import TimeVaryingGP


class RawKernel(Kernel):
    """The action kernel of a model, its transforms of inputs and outcomes undone.

    Args:
        model: A model of one output whose rows are ``[action | time]``.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, an outcome transform other
            than ``Standardize``, or an input transform that changes time.
    """

    def __init__(self, model: TimeVaryingGP):
        super().__init__()
        check_supported(model)
        self.model = model

    @property
    def is_stationary(self) -> bool:
        """As the model's."""
        return self.model.covar_module.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        """Covariances of actions, ``... x d``."""
        inputs = [self.model.transform_inputs(with_time(x, 0.0)) for x in (x1, x2)]
        covar = self.model.covar_module.kernels[0](*inputs, diag=diag, **params)
        return covar * outcome_scale(self.model)[1] ** 2


class RawMean(Mean):
    """The mean of a model in units of raw outcomes.

    Args:
        model: As in :class:`RawKernel`.
    """

    def __init__(self, model: TimeVaryingGP):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Means of rows ``[action | time]``."""
        shift, scale = outcome_scale(self.model)
        return shift + scale * self.model.mean_module(self.model.transform_inputs(x))


def has_zero_mean(model: TimeVaryingGP) -> bool:
    """Whether the mean is zero in raw units."""
    return isinstance(model.mean_module, ZeroMean) and not hasattr(model, "outcome_transform")


def raw_noise_variance(model: TimeVaryingGP) -> float:
    """The noise variance of a model, in squared units of raw outcomes."""
    noise = model.likelihood.noise
    if noise.numel() == 0:
        # Fixed for each observation, of which there are none yet.
        return 0.0
    return (noise.mean() * outcome_scale(model)[1] ** 2).item()


def outcome_scale(model: TimeVaryingGP) -> tuple[float, float]:
    """Mean and standard deviation by which outcomes were standardized; 0 and 1 if they were not."""
    if not hasattr(model, "outcome_transform"):
        return 0.0, 1.0
    return model.outcome_transform.means.item(), model.outcome_transform.stdvs.item()


def with_time(x: Tensor, t: float) -> Tensor:
    """Actions as rows at a time."""
    return torch.cat([x, x.new_full((*x.shape[:-1], 1), t)], dim=-1)


def check_supported(model: TimeVaryingGP) -> None:
    """Raise unless the model's hyperparameters carry over to a finite set."""
    transform = getattr(model, "outcome_transform", None)
    if model.num_outputs > 1 or len(model.batch_shape) > 0:
        raise UnsupportedError(
            "Expected a model of one output and no batch. "
            f"Got {model.num_outputs} outputs, batch_shape={tuple(model.batch_shape)}."
        )
    if transform is not None and not isinstance(transform, Standardize):
        raise UnsupportedError(
            f"Expected Standardize or no outcome transform. Got {type(transform).__name__}."
        )
    width = model.covar_module.kernels[0].active_dims.numel()
    place = int(model.temporal_kernel.active_dims)
    # Two times, since a transform may leave one of them as it is.
    rows = torch.zeros(2, width + 1, dtype=torch.float64)
    rows[:, -1] = torch.tensor([0.0, 1.0])
    if place != width or (model.transform_inputs(rows)[:, -1] != rows[:, -1]).any():
        raise UnsupportedError(
            "Expected rows [action | time] and no transform of time. "
            f"Got time in column {place} of {width + 1}."
        )
