"""A fitted model's kernel over actions, and what else a finite set takes from the model."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from tvbo.models.raw import (
    RawRowKernel,
    check_one_output,
    transformed,
)
from tvbo.models.time_varying_gp import TimeVaryingGP


class RawKernel(RawRowKernel):
    """The action kernel of a model, its transforms of inputs and outcomes undone.

    Args:
        model: A model of one output whose rows are ``[action | time]``, in eval mode.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, an outcome transform other
            than ``Standardize``, or an input transform that changes time.
    """

    def __init__(self, model: TimeVaryingGP):
        check_supported(model)
        super().__init__(model)
        self.covar_module = model.covar_module.kernels[0]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        """Covariances of actions, ``... x d``."""
        return super().forward(with_time(x1, 0.0), with_time(x2, 0.0), diag=diag, **params)


def with_time(x: Tensor, t: float) -> Tensor:
    """Actions as rows at a time."""
    return torch.cat([x, x.new_full((*x.shape[:-1], 1), t)], dim=-1)


def check_supported(model: TimeVaryingGP) -> None:
    """Raise unless the model's hyperparameters carry over to a finite set."""
    check_one_output(model)
    if model.temporal_kernel is None:
        raise UnsupportedError("Expected a model with a time column. Got one without.")
    width = model.covar_module.kernels[0].active_dims.numel()
    place = int(model.temporal_kernel.active_dims)
    # Two times, since a transform may leave one of them as it is.
    rows = torch.zeros(2, width + 1, dtype=torch.float64)
    rows[:, -1] = torch.tensor([0.0, 1.0])
    seen = transformed(getattr(model, "input_transform", None), rows)
    if place != width or (seen[:, -1] != rows[:, -1]).any():
        raise UnsupportedError(
            "Expected rows [action | time] and no transform of time. "
            f"Got time in column {place} of {width + 1}."
        )
