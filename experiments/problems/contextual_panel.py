"""Problems with the value of each action in each context given at a grid of times."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Generator, Tensor

from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.spaces.observations import check_finite
from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.panel import PanelProblem
from tvbo.values import as_numbers


class ContextualPanelProblem(DriftingProblem):
    """Values of ``n`` actions in ``m`` contexts at ``T`` times, recorded or drawn from a model.

    Args:
        values: ``T x n x m``.
        contexts: ``m x c``.
        times: ``T``, strictly increasing; default ``1, ..., T``.
        choices: The actions, ``n x d``; default the indices ``0, ..., n - 1`` in one column.
        noise_variance: Variance of noise added to the values.
        generator: Source of the noise.

    Raises:
        BotorchTensorDimensionError: if the shapes do not agree.
        InputDataError: if a value, a time, a choice or a context is not finite, times do not
            increase, or choices or contexts contain duplicates.

    Example:
        >>> problem = ContextualPanelProblem(torch.rand(100, 46, 24), contexts=hours)
        >>> problem.optimal_action(t=1.0, context=hours[0])
    """

    def __init__(
        self,
        values: Tensor,
        contexts: Tensor,
        times: Tensor | None = None,
        choices: Tensor | None = None,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        values = as_numbers("values", values)
        if values.ndim != 3 or 0 in values.shape:
            raise BotorchTensorDimensionError(
                f"Expected values of shape T x n x m. Got values.shape={tuple(values.shape)}."
            )
        check_finite("values", values)
        T, n, m = values.shape
        if times is None:
            times = torch.arange(1, T + 1, dtype=torch.float64)
        if choices is None:
            choices = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
        times = as_numbers("times", times)
        self.search_space = FiniteSpace(choices)
        self.context_set = FiniteSpace(contexts, name="context")
        if times.shape != (T,) or (len(self.choices), len(self.contexts)) != (n, m):
            raise BotorchTensorDimensionError(
                f"Expected {T} times, {n} choices and {m} contexts for values of shape "
                f"{T} x {n} x {m}. Got times.shape={tuple(times.shape)}, choices.shape="
                f"{tuple(self.choices.shape)}, contexts.shape={tuple(self.contexts.shape)}."
            )
        layout = InputLayout(self.search_space.dim, self.context_set.dim)
        super().__init__(layout, noise_variance, generator)
        # A panel whose arms are the pairs, by index; it looks up times.
        self._pairs = PanelProblem(values.flatten(1), times)

    @property
    def choices(self) -> Tensor:
        """The actions, ``n x d``."""
        return self.search_space.choices

    @property
    def contexts(self) -> Tensor:
        """The contexts, ``m x c``."""
        return self.context_set.choices

    @property
    def times(self) -> Tensor:
        """The times, ``T``."""
        return self._pairs.times

    @property
    def values(self) -> Tensor:
        """The values, ``T x n x m``."""
        values: Tensor = self._pairs.values.unflatten(1, (len(self.choices), len(self.contexts)))
        return values

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest value at the recorded time ``t`` in one of the contexts."""
        return self._at(t, context).max().item()

    def optimal_action(self, t: float, context: Tensor) -> Tensor:
        """Return the best action, ``d``, at the recorded time ``t`` in a context."""
        return self.choices[self._at(t, context).argmax()]

    def _at(self, t: float, context: Tensor | None) -> Tensor:
        """Return the values of all actions at one time in one context, ``n``."""
        return self.evaluate_true(self.layout.rows(self.choices, t, context))

    def _evaluate_true(self, X: Tensor) -> Tensor:
        d = self.layout.num_actions
        arm, context = self.search_space.index(X[:, :d]), self.context_set.index(X[:, d:-1])
        pair = arm * len(self.contexts) + context
        return self._pairs.evaluate_true(torch.stack([pair.to(X), X[:, -1]], dim=-1))
