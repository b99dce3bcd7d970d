"""Problems with the value of each action given at a grid of times."""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.spaces.observations import check_finite
from tvbo.test_functions.base import DriftingProblem
from tvbo.values import as_numbers


class PanelProblem(DriftingProblem):
    """Values of ``n`` actions at ``T`` times, recorded or drawn from a model.

    Args:
        values: ``T x n``; NaN where there is no reading, which fails a trial.
        times: ``T``, strictly increasing; default ``1, ..., T``.
        choices: The actions, ``n x d``; default the indices ``0, ..., n - 1`` in one column.
        noise_variance: Variance of noise added to the values; recorded data already has noise.
        generator: Source of the noise.

    Raises:
        BotorchTensorDimensionError: if the shapes do not agree.
        InputDataError: if a value is infinite, a time has no reading at all or is not finite, or
            times do not increase.
    """

    def __init__(
        self,
        values: Tensor,
        times: Tensor | None = None,
        choices: Tensor | None = None,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        values = as_numbers("values", values)
        if values.ndim != 2 or 0 in values.shape:
            raise BotorchTensorDimensionError(
                f"Expected values of shape T x n. Got values.shape={tuple(values.shape)}."
            )
        check_finite("values", values.nan_to_num(0.0, math.inf, -math.inf))
        T, n = values.shape
        times = as_numbers("times", range(1, T + 1) if times is None else times)
        indices = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
        self.search_space = FiniteSpace(indices if choices is None else choices)
        self.choices = self.search_space.choices
        """The actions, ``n x d``."""
        if times.shape != (T,) or len(self.choices) != n:
            raise BotorchTensorDimensionError(
                f"Expected {T} times and {n} choices for values of shape {T} x {n}. "
                f"Got times.shape={tuple(times.shape)}, choices.shape={tuple(self.choices.shape)}."
            )
        check_finite("times", times)
        if (times.diff() <= 0).any():
            raise InputDataError("Expected times that increase. Got times that do not.")
        empty = values.isnan().all(dim=1)
        if empty.any():
            raise InputDataError(
                "Expected a reading of at least one arm at each time. Got none at "
                f"t={times[empty][0]:g}."
            )
        super().__init__(InputLayout(self.search_space.dim), noise_variance, generator)
        self.values = values
        self.times = times

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest value at the recorded time ``t``."""
        return self._known_at(t).max().item()

    def optimal_action(self, t: float) -> Tensor:
        """Return the action, ``d``, with the largest value at the recorded time ``t``."""
        return self.choices[self._known_at(t).argmax()]

    def _known_at(self, t: float) -> Tensor:
        """Return the values at a recorded time, ``n``, −∞ where there is no reading."""
        values = self._at(torch.tensor([t], dtype=torch.float64))[0]
        return values.nan_to_num(nan=-math.inf)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        arm = self.search_space.index(X[:, : self.layout.num_actions])
        return self._at(X[:, -1]).gather(-1, arm.unsqueeze(-1)).squeeze(-1)

    def _at(self, t: Tensor) -> Tensor:
        """Return the values of all actions at recorded times, ``len(t) x n``."""
        index = torch.searchsorted(self.times, t.contiguous()).clamp_max(len(self.times) - 1)
        missing = self.times[index] != t
        if missing.any():
            raise InputDataError(
                f"Expected one of the {len(self.times)} recorded times, from {self.times[0]:g} "
                f"to {self.times[-1]:g}. Got t={t[missing][0]:g}."
            )
        return self.values[index]
