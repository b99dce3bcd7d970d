"""A fitted model's kernels over actions and over time, in the units of raw inputs and outcomes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from tvbo.kernels.batch import ColumnKernel
from tvbo.models.raw import RawRowKernel, check_one_output, transformed
from tvbo.models.time_varying_gp import TimeVaryingGP


class RawActionKernel(RawRowKernel):
    """An action kernel of a model, with the transforms of inputs and outcomes undone.

    Args:
        model: A model of one output whose rows are ``[action | time]``, in eval mode.
        number: Which of the products of its kernel.

    Raises:
        UnsupportedError: if the model has a batch, more than one output, an outcome transform other
            than ``Standardize``, or an input transform that changes time.
    """

    def __init__(self, model: TimeVaryingGP, number: int = 0):
        _check(model)
        super().__init__(model)
        self.covar_module = _products(model)[number].kernels[0]

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
    _check(model)
    products = _products(model)
    over_actions = [RawActionKernel(model, number) for number in range(len(products))]
    over_time = []
    for product in products:
        factor = product.kernels[1]
        terms = factor.kernels if isinstance(factor, AdditiveKernel) else [factor]
        over_time += [_without_column(term) for term in terms]
    return list(over_actions), over_time


def _without_column(kernel: Kernel) -> Kernel:
    """Return a copy of a temporal kernel, scaled or not, that does not know its column."""
    new = deepcopy(kernel.base_kernel if isinstance(kernel, ColumnKernel) else kernel)
    if isinstance(new, ScaleKernel):
        new.base_kernel = _without_column(new.base_kernel)
    new.active_dims = None
    return new


def _products(model: TimeVaryingGP) -> list[Kernel]:
    """Return the products of an action kernel and temporal ones whose sum the kernel is."""
    kernel = model.covar_module
    return list(kernel.kernels) if isinstance(kernel, AdditiveKernel) else [kernel]


def _check(model: TimeVaryingGP) -> None:
    """Raise unless a finite set can use the hyperparameters of a model."""
    check_one_output(model)
    if model.time_feature is None:
        raise UnsupportedError("Expected a model with a time column. Got one without.")
    width = _products(model)[0].kernels[0].active_dims.numel()
    # Two times, because a transform may leave one of them unchanged.
    rows = torch.zeros(2, width + 1, dtype=torch.float64)
    rows[:, -1] = torch.tensor([0.0, 1.0])
    seen = transformed(getattr(model, "input_transform", None), rows)
    if model.time_feature != width or (seen[:, -1] != rows[:, -1]).any():
        raise UnsupportedError(
            "Expected rows [action | time] and no transform of time. "
            f"Got time in column {model.time_feature} of {width + 1}."
        )
