"""Functions of rows with gradients in closed form, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

Array = NDArray[np.float64]

Pullback = Callable[[Array], Array]
"""Takes derivatives by the values, ``k x b``, to derivatives by the rows, ``b x d``."""

Evaluate = Callable[[Array, bool], tuple[Array, Pullback | None]]
"""Takes rows ``b x d``, and whether derivatives are needed, to values ``k x b`` and a pullback."""


class ClosedForm(torch.autograd.Function):
    """Give a function in NumPy, with its gradient, to PyTorch.

    For some hundred numbers, PyTorch's graph takes ten times as long as they do in NumPy.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, evaluate: Evaluate) -> Tensor:
        """Return values ``k x ...`` at rows ``... x d``.

        Args:
            ctx: PyTorch's context.
            X: The rows.
            evaluate: The function.
        """
        rows = X.detach().reshape(-1, X.shape[-1]).numpy(force=True)
        values, ctx.pullback = evaluate(rows, ctx.needs_input_grad[0])
        return torch.from_numpy(values).to(X.device).view(-1, *X.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_values: Tensor) -> tuple[Tensor, None]:
        """Return the gradient by the rows, ``... x d``."""
        by_rows = torch.from_numpy(ctx.pullback(by_values.flatten(1).numpy(force=True)))
        return by_rows.to(by_values.device).view(*by_values.shape[1:], -1), None
