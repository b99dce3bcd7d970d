"""An objective that drifts, with what is needed to score a run on it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor

from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.search_space import InputLayout
from tvbo.validation import check_finite, check_last_dimension


class DriftingProblem(ABC):
    """A function of action, context and time, to be maximized.

    Args:
        layout: How its rows are laid out.
        noise_variance: Variance of the Gaussian noise on what is observed.
        generator: Source of the noise; default a fresh one with a fixed seed.

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
        """Noisy values of rows ``n x (d + c + 1)``: a tensor of shape ``n``."""
        values = self.evaluate_true(X)
        noise = torch.randn(values.shape, dtype=values.dtype, generator=self.generator)
        return values + self.noise_variance**0.5 * noise

    def evaluate_true(self, X: Tensor) -> Tensor:
        """Values without noise of rows ``n x (d + c + 1)``: a tensor of shape ``n``."""
        check_last_dimension("X", X, self.layout.num_columns)
        check_finite("X", X)
        return self._evaluate_true(X)

    @abstractmethod
    def _evaluate_true(self, X: Tensor) -> Tensor:
        """Values of checked rows."""

    def context(self, t: float) -> Tensor | None:
        """The context, ``c``, where the time fixes it, such as the time of day; None otherwise."""
        return None

    @abstractmethod
    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """The largest value that an action has at time ``t`` in ``context``."""
