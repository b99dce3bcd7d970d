"""The unit cube, in which every search of an acquisition function takes place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.utils import columnwise_clamp
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

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


def unit_bounds(dim: int) -> Tensor:
    """Return the bounds of the unit cube, ``2 x d``."""
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dim)


class InUnitCube(AcquisitionFunction):
    """An acquisition function of points of the unit cube.

    L-BFGS-B stops by an absolute tolerance of the gradient, and its first step has length one: both
    mean the same in any unit of the actions only if these are scaled.

    Args:
        acq_function: A function of rows ``b x q x d'``.
        bounds: Smallest and largest value of each column that is searched, ``2 x d``.
        rows: Returns the rows of columns that are searched, ``... x d``.
        unit: Unit of the values, since searches stop by an absolute tolerance of these as well.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        bounds: Tensor,
        rows: Callable[[Tensor], Tensor],
        unit: float = 1.0,
    ):
        # Not every acquisition function has a model, as BoTorch's base class does.
        Module.__init__(self)
        self._acq_function, self._rows, self._unit = acq_function, rows, unit
        self._lower, self._width = bounds[0], bounds[1] - bounds[0]
        self._row = rows(bounds[:1])

    def columns(self, unit: Tensor) -> Tensor:
        """Return the columns that are searched of points of the cube, ``... x d``."""
        return self._lower + unit * self._width

    def points(self, columns: Tensor) -> Tensor:
        """Return the points of the cube of columns that are searched, ``... x d``."""
        return (columns - self._lower) / self._width

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, at points ``b x q x d``, or at ``q x d``."""
        rows = self._rows(self.columns(X if X.ndim > 2 else X.unsqueeze(0)))
        values: Tensor = self._acq_function(rows)
        return values / self._unit

    def value_and_gradient(self, X: Array) -> tuple[Array, Array]:
        """Return values ``b`` at points ``b x d``, and gradients ``b x d``, in closed form.

        Of a box, where the columns that are searched come first and the others are the same.
        """
        d, width = X.shape[-1], self._width.numpy()
        rows = self._row.numpy().repeat(len(X), axis=0)
        rows[:, :d] = self._lower.numpy() + X * width
        evaluate = cast(ClosedFormAcquisition, self._acq_function).value_and_gradient
        values, gradients = evaluate(rows)
        return values / self._unit, gradients[:, :d] * width / self._unit
