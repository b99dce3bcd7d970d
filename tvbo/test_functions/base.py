"""Base class of problems: an objective with its noise and its optimal value."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor

from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import check_finite, check_last_dimension


class DriftingProblem(ABC):
    """A function of action, context and time, to be maximized.

    Args:
        layout: Layout of its rows ``[action | context | time]``.
        noise_variance: Variance of the Gaussian observation noise.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        ValueError: if ``noise_variance`` is negative.
    """

    def __init__(
        self, layout: InputLayout, noise_variance: float = 0.0, generator: Generator | None = None
    ):
        if not 0 <= noise_variance < float("inf"):
            raise ValueError(f"Expected noise_variance >= 0. Got {noise_variance}.")
        self.layout = layout
        self.noise_variance = noise_variance
        self.generator = default_generator(generator, PROBLEM_SEED)

    def __call__(self, X: Tensor) -> Tensor:
        """Return noisy values, ``n``, of rows ``n x (d + c + 1)``."""
        values = self.evaluate_true(X)
        noise = torch.randn(values.shape, dtype=values.dtype, generator=self.generator)
        return values + float(self.noise_variance**0.5) * noise

    def observe(self, X: Tensor) -> Tensor | dict[str, float]:
        """Return the outcome of one row, ``1 x (d + c + 1)``, with noise; of several by name.

        Those of a problem with several outcomes are what its optimizer observes.
        """
        return self(X)

    def scored_value(self, X: Tensor) -> float:
        """Return the value, without noise, from which the regret of one row is counted.

        Where there are constraints, that of a row that breaks one is the smallest feasible value.
        """
        return float(self.evaluate_true(X))

    def evaluate_true(self, X: Tensor) -> Tensor:
        """Return values without noise, ``n``, of rows ``n x (d + c + 1)``."""
        check_last_dimension("X", X, self.layout.num_columns)
        check_finite("X", X)
        return self._evaluate_true(X)

    @abstractmethod
    def _evaluate_true(self, X: Tensor) -> Tensor:
        """Return values without noise of checked rows."""

    def context(self, t: float) -> Tensor | None:
        """Return the context, ``c``, if the time determines it (a time of day), else None."""
        return None

    @abstractmethod
    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest value of an action at time ``t`` in ``context``."""
