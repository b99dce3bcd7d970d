"""A fitted model's kernel over actions alone, in the units of raw inputs and outcomes."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from tvbo.kernels import TemporalDecayKernel
from tvbo.models.raw import RawRowKernel, check_one_output, transformed
from tvbo.models.time_varying_gp import TimeVaryingGP


class RawActionKernel(RawRowKernel):
    """The action kernel of a model, with the transforms of inputs and outcomes undone.

    Args:
        model: A model of one output whose rows are ``[action | time]``, in eval mode.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, an outcome transform other
            than ``Standardize``, or an input transform that changes time.
    """

    def __init__(self, model: TimeVaryingGP):
        supported_temporal_kernel(model)
        super().__init__(model)
        self.covar_module = model.covar_module.kernels[0]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of actions ``... x d``."""
        return super().forward(with_time(x1, 0.0), with_time(x2, 0.0), diag=diag, **params)


def with_time(x: Tensor, t: float) -> Tensor:
    """Return actions ``... x d`` as rows ``[action | time]`` at a time."""
    return torch.cat([x, x.new_full((*x.shape[:-1], 1), t)], dim=-1)


def supported_temporal_kernel(model: TimeVaryingGP) -> TemporalDecayKernel:
    """Return the temporal kernel of a model whose hyperparameters a finite set can use.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, no time column, an outcome
            transform other than ``Standardize``, or an input transform that changes time.
    """
    check_one_output(model)
    temporal = model.temporal_kernel
    if temporal is None:
        raise UnsupportedError("Expected a model with a time column. Got one without.")
    width = model.covar_module.kernels[0].active_dims.numel()
    time_column = int(temporal.active_dims)
    # Two times, because a transform may leave one of them unchanged.
    rows = torch.zeros(2, width + 1, dtype=torch.float64)
    rows[:, -1] = torch.tensor([0.0, 1.0])
    seen = transformed(getattr(model, "input_transform", None), rows)
    if time_column != width or (seen[:, -1] != rows[:, -1]).any():
        raise UnsupportedError(
            "Expected rows [action | time] and no transform of time. "
            f"Got time in column {time_column} of {width + 1}."
        )
    return temporal
