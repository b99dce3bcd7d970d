"""Search of an acquisition function whose gradient is in closed form, without PyTorch."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.utils import columnwise_clamp
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@runtime_checkable
class ClosedFormAcquisition(Protocol):
    """An acquisition function of single rows that returns its gradient too, in NumPy."""

    def value_and_gradient(self, X: Array) -> tuple[Array, Array]:
        """Return values ``b`` at rows ``b x d'``, and gradients ``b x d'``."""


def gen_candidates_closed_form(
    initial_conditions: Tensor,
    acquisition_function: AcquisitionFunction,
    lower_bounds: Tensor,
    upper_bounds: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Generate candidates as :func:`botorch.generation.gen_candidates_scipy` does.

    The search is BoTorch's: L-BFGS-B from all starts, whose functions are evaluated together. At
    each evaluation it saves PyTorch's graph, which takes several times as long as the numbers.

    Args:
        initial_conditions: Starts, ``b x 1 x d'``.
        acquisition_function: A :class:`ClosedFormAcquisition`.
        lower_bounds: Smallest values of the columns, ``d'``.
        upper_bounds: Largest values of the columns, ``d'``.

    Returns:
        The candidates, ``b x 1 x d'``, and their values, ``b``.
    """
    evaluate = cast(ClosedFormAcquisition, acquisition_function).value_and_gradient
    starts = columnwise_clamp(initial_conditions, lower_bounds, upper_bounds).squeeze(-2)

    def negative(X: Array) -> tuple[Array, Array]:
        values, gradients = evaluate(X)
        return -values, -gradients

    bounds = list(zip(lower_bounds.tolist(), upper_bounds.tolist(), strict=True))
    X, values, _ = fmin_l_bfgs_b_batched(negative, starts.numpy(), bounds, maxiter=2000)
    return torch.from_numpy(X).unsqueeze(-2), torch.from_numpy(-values)
