"""Kernels over action and context together, composed of one over each."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import to_dense
from torch import Size, Tensor
from torch.nn import Parameter

from tvbo.kernels.column import ColumnKernel
from tvbo.validation import check_finite

Structure = Literal["product", "additive", "both"]


class ContextActionKernel(Kernel):
    r"""A kernel over action :math:`s` and context :math:`z` (Krause, Ong, 2011, Section 5.1).

    .. math::
        \text{product:} \quad & k_S(s, s')\, k_Z(z, z') \\
        \text{additive:} \quad & k_S(s, s') + k_Z(z, z') \\
        \text{both:} \quad & a\,k_S(s, s') + b\,k_Z(z, z') + c\,k_S(s, s')\, k_Z(z, z')

    *product*: what is good in one context says something of others like it, and the best action may
    be another in each. *additive*: a context lifts or lowers all actions alike, so that one action
    is the best everywhere. *both*: main effects and interaction, with scales ``(a, b, c)`` that
    are learned and start at 1; the other two structures have no scales but those of their parts.

    Args:
        action_kernel: Any kernel over actions.
        context_kernel: Any kernel over contexts. Neither is changed; both are used as they are.
        structure: ``"product"``, ``"additive"`` or ``"both"``.
        action_features: The columns of the input that ``action_kernel`` sees, as its columns
            ``0, 1, ...``. None: those of its ``active_dims``.
        context_features: The same for ``context_kernel``.

    Shape:
        ``batch_shape x n x d`` and ``batch_shape x n' x d`` give ``batch_shape x n x n'``.

    Raises:
        ValueError: if ``structure`` is none of the three, or a column is seen by both kernels.
        InputDataError: if an input is NaN or infinite in a column that is seen.

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
            _check_features("action_features", action_features)
            action_kernel = ColumnKernel(action_kernel, action_features)
        if context_features is not None:
            _check_features("context_features", context_features)
            context_kernel = ColumnKernel(context_kernel, context_features)
        seen = _columns_seen(action_kernel), _columns_seen(context_kernel)
        _check_apart(*seen)
        self.columns = sorted(set().union(*seen))
        self.action_kernel = action_kernel
        self.context_kernel = context_kernel
        self.structure = structure
        if structure == "both":
            self.register_parameter("raw_outputscales", Parameter(torch.ones(*self.batch_shape, 3)))
            # No transform: L-BFGS sees a box, and a part that explains nothing can be exactly zero.
            self.register_constraint("raw_outputscales", _at_least_zero())

    @property
    def batch_shape(self) -> Size:
        """That of the two kernels together."""
        return torch.broadcast_shapes(
            self.action_kernel.batch_shape, self.context_kernel.batch_shape
        )

    @batch_shape.setter
    def batch_shape(self, value: Size) -> None:
        self._batch_shape = value

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters and matrices that the kernels hold."""
        held = [x.dtype for x in (*self.parameters(), *self.buffers()) if x.is_floating_point()]
        return held[0] if held else torch.get_default_dtype()

    def __getitem__(self, index) -> ContextActionKernel:
        """The kernel of a part of the batch."""
        if not self.batch_shape:
            return self
        # Not GPyTorch's, which enters the kernels inside the parts a second time.
        new = ContextActionKernel(
            self.action_kernel[index], self.context_kernel[index], self.structure
        )
        if self.structure == "both":
            new.raw_outputscales = Parameter(self.raw_outputscales.detach()[index])
        return new

    @property
    def is_stationary(self) -> bool:
        """If both kernels are."""
        return self.action_kernel.is_stationary and self.context_kernel.is_stationary

    @property
    def outputscales(self) -> Tensor:
        """Scales of action, context and interaction, ``batch_shape x 3``; for ``"both"`` alone.

        Raises:
            UnsupportedError: if the structure is another, which has no scales of its own.
        """
        self._check_scaled()
        return self.raw_outputscales_constraint.transform(self.raw_outputscales)

    @outputscales.setter
    def outputscales(self, value: Tensor | Sequence[float]) -> None:
        self._check_scaled()
        value = torch.as_tensor(value, dtype=torch.float64).to(self.raw_outputscales)
        if value.shape[-1:] != (3,):
            raise ValueError(
                "Expected outputscales with last dimension 3: action, context, interaction. "
                f"Got shape {tuple(value.shape)}."
            )
        check_finite("outputscales", value)
        if (value < 0).any():
            raise ValueError(f"Expected outputscales >= 0. Got {value.tolist()}.")
        self.initialize(raw_outputscales=value.expand_as(self.raw_outputscales))

    def _check_scaled(self) -> None:
        # No AttributeError, whose message a torch module replaces by its own.
        if self.structure != "both":
            raise UnsupportedError(
                f"Only the structure 'both' has outputscales. Got structure {self.structure!r}."
            )

    def components(self) -> dict[str, Kernel]:
        """Kernels whose sum this is, by name: ``action``, ``context``, ``interaction``.

        Copies with the parameters of now: what they learn does not come back.
        """
        action, context = deepcopy(self.action_kernel), deepcopy(self.context_kernel)
        if self.structure == "product":
            return {"interaction": ContextActionKernel(action, context)}
        if self.structure == "additive":
            return {"action": action, "context": context}
        parts = {
            "action": action,
            "context": context,
            "interaction": ContextActionKernel(deepcopy(action), deepcopy(context)),
        }
        scales = self.outputscales.detach().unbind(dim=-1)
        return {
            name: _scaled(part, scale)
            for (name, part), scale in zip(parts.items(), scales, strict=True)
        }

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        """Covariances of the rows ``x1`` and ``x2``; see the class for shapes."""
        for x in (x1, x2):
            check_finite("inputs", x[..., self.columns])
        action = to_dense(self.action_kernel(x1, x2, diag=diag, **params))
        context = to_dense(self.context_kernel(x1, x2, diag=diag, **params))
        if self.structure == "product":
            return action * context
        if self.structure == "additive":
            return action + context
        a, b, c = self.outputscales.reshape(
            *self.outputscales.shape[:-1], *[1] * (1 if diag else 2), 3
        ).unbind(dim=-1)
        return a * action + b * context + c * action * context


def _scaled(kernel: Kernel, scale: Tensor) -> Kernel:
    scaled = ScaleKernel(kernel, batch_shape=scale.shape, outputscale_constraint=_at_least_zero())
    scaled = scaled.to(scale)
    scaled.outputscale = scale
    return scaled.requires_grad_(False)


def _at_least_zero() -> GreaterThan:
    return GreaterThan(0.0, transform=None)


def _columns_seen(kernel: Kernel) -> set[int] | None:
    """The columns of its input that a kernel sees; None for all of them, however many."""
    if kernel.active_dims is not None:
        return set(kernel.active_dims.tolist())
    parts = [part for part in kernel.modules() if isinstance(part, Kernel) and part is not kernel]
    direct = [part for part in parts if not any(part in set(p.modules()) - {p} for p in parts)]
    seen = [_columns_seen(part) for part in direct]
    if not seen or any(columns is None for columns in seen):
        return None
    return set().union(*seen)


def _check_features(name: str, features: Sequence[int]) -> None:
    # Counted from the end, a column could not be compared with others: the width is unknown.
    features = list(features)
    if not features or min(features) < 0 or len(set(features)) < len(features):
        raise ValueError(f"Expected {name}: distinct columns, counted from 0. Got {features}.")


def _check_apart(action: set[int] | None, context: set[int] | None) -> None:
    if action is None or context is None:
        blind = " and ".join(
            name for name, seen in (("action", action), ("context", context)) if seen is None
        )
        raise ValueError(
            "Expected kernels that see columns of their own: set active_dims, or pass "
            f"action_features and context_features. Got {blind} kernel without."
        )
    if action & context:
        raise ValueError(
            "Expected action and context columns that do not overlap. "
            f"Got column {min(action & context)} in both."
        )
