"""Kernels over actions and contexts, composed of a kernel over each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor
from torch.nn import Module, Parameter

from tvbo.kernels.batch import BatchKernel, ColumnKernel
from tvbo.spaces.observations import check_finite

Structure = Literal["product", "additive", "both"]


class ContextActionKernel(BatchKernel):
    r"""A kernel over action :math:`s` and context :math:`z` (Krause, Ong, 2011, Section 5.1).

    .. math::
        \text{product:} \quad & k_S(s, s')\, k_Z(z, z') \\
        \text{additive:} \quad & k_S(s, s') + k_Z(z, z') \\
        \text{both:} \quad & a\,k_S(s, s') + b\,k_Z(z, z') + c\,k_S(s, s')\, k_Z(z, z')

    *product*: outcomes in one context are informative about similar ones, and the best action may
    differ between contexts. *additive*: a context changes the outcomes of all actions by the same
    amount, so that one action is the best in every context. *both*: main effects and interaction,
    with scales ``(a, b, c)`` that are learned and start at 1; the other two structures have no
    scales but those of their parts.

    Args:
        action_kernel: Any kernel over actions.
        context_kernel: Any kernel over contexts. Both kernels are used as given, not copied.
        structure: ``"product"``, ``"additive"`` or ``"both"``.
        action_features: The columns of the input that are passed to ``action_kernel``, as its
            columns ``0, 1, ...``. None: those of its ``active_dims``.
        context_features: The same for ``context_kernel``.

    Shape:
        ``batch_shape x n x d`` and ``batch_shape x n' x d`` give ``batch_shape x n x n'``.

    Raises:
        ValueError: if ``structure`` is none of the three, or both kernels use the same column.
        InputDataError: if an input is NaN or infinite in a column that is used.

    Example:
        >>> ContextActionKernel(RBFKernel(active_dims=[0, 1]), MaternKernel(active_dims=[2]))
        >>> ContextActionKernel(
        ...     IdentityKernel(), LinearKernel(), action_features=[0], context_features=[1, 2]
        ... )
    """

    def __init__(
        self,
        action_kernel: Kernel,
        context_kernel: Kernel,
        structure: Structure = "product",
        action_features: Sequence[int] | None = None,
        context_features: Sequence[int] | None = None,
    ):
        super().__init__()
        if structure not in ("product", "additive", "both"):
            raise ValueError(
                f"Expected structure 'product', 'additive' or 'both'. Got {structure!r}."
            )
        if action_features is not None:
            action_kernel = ColumnKernel(action_kernel, action_features)
        if context_features is not None:
            context_kernel = ColumnKernel(context_kernel, context_features)
        action, context = _input_columns(action_kernel), _input_columns(context_kernel)
        # Negative indices could not be compared with others, because the width is unknown.
        self.columns = sorted({column for column in (*action, *context) if column >= 0})
        if not action or not context or len(self.columns) < len(action) + len(context):
            raise ValueError(
                "Expected columns of actions and of contexts that differ, counted from 0. "
                f"Got {action} and {context}."
            )
        self.action_kernel, self.context_kernel = action_kernel, context_kernel
        self.structure = structure
        if structure == "both":
            self.register_parameter("raw_outputscales", Parameter(torch.ones(*self.batch_shape, 3)))
            # No transform: L-BFGS has a box, and the scale of a part can become exactly zero.
            self.register_constraint("raw_outputscales", GreaterThan(0.0, transform=None))

    @property
    def outputscales(self) -> Tensor:
        """Scales of action, context and interaction, ``batch_shape x 3``, of structure ``"both"``.

        Raises:
            UnsupportedError: if the structure is another one, which has no scales of its own.
        """
        self._check_scaled()
        return self.raw_outputscales_constraint.transform(self.raw_outputscales)

    @outputscales.setter
    def outputscales(self, value: Tensor | Sequence[float]) -> None:
        self._check_scaled()
        value = torch.as_tensor(value, dtype=torch.float64).to(self.raw_outputscales)
        if value.shape[-1:] != (3,) or not ((value >= 0) & (value < math.inf)).all():
            raise ValueError(
                "Expected outputscales >= 0, finite, of action, context and interaction. "
                f"Got {value.tolist()}."
            )
        self.initialize(raw_outputscales=value.expand_as(self.raw_outputscales))

    def _check_scaled(self) -> None:
        # Not an AttributeError, because a torch module would replace its message.
        if self.structure != "both":
            raise UnsupportedError(
                f"Only the structure 'both' has outputscales. Got structure {self.structure!r}."
            )

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the covariances of rows ``x1`` and ``x2``, ``batch_shape x n x n'``."""
        for x in (x1, x2):
            check_finite("inputs", x[..., self.columns])
        action: Tensor = to_dense(self.action_kernel(x1, x2, diag=diag, **params))
        context: Tensor = to_dense(self.context_kernel(x1, x2, diag=diag, **params))
        if self.structure == "product":
            return action * context
        if self.structure == "additive":
            return action + context
        a, b, c = self.outputscales.reshape(
            *self.outputscales.shape[:-1], *[1] * (1 if diag else 2), 3
        ).unbind(dim=-1)
        return a * action + b * context + c * action * context


def _input_columns(kernel: Module) -> list[int]:
    """Return the columns of its input that a kernel uses; raise if it uses all of them."""
    if isinstance(kernel, Kernel) and kernel.active_dims is not None:
        return kernel.active_dims.tolist()
    parts = [m for m in kernel.children() if any(isinstance(x, Kernel) for x in m.modules())]
    if not parts:
        raise ValueError(
            "Expected kernels that see columns of their own: set active_dims, or pass "
            f"action_features and context_features. Got a {type(kernel).__name__} without."
        )
    return sorted({column for part in parts for column in _input_columns(part)})
