"""Functions without drift on a grid of actions."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.drifting_gp import unit_grid


class StaticFunction(DriftingProblem):
    r"""A function of the action alone; its rows have a time like those of other problems.

    Its reward is :math:`(f(x) - \text{shift}) / \text{scale}`, to match a prior of mean 0 and
    variance 1. Any action can be evaluated; the optimum is that of the choices.

    Args:
        choices: The actions, ``n x d``.
        shift: Number subtracted from the function; None is its mean over the choices.
        scale: Number that the difference is divided by; None is its standard deviation over the
            choices.
        noise_variance: Variance of the observation noise, in the unit of the reward.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        BotorchTensorDimensionError: if ``choices`` has another width.
        InputDataError: if a choice is not finite, the choices contain duplicates, or, with
            ``scale=None``, the function has the same value at all of them.
        ValueError: if ``shift`` is not finite, or ``scale`` not positive.
    """

    dim: int
    """Number of columns of an action."""

    def __init__(
        self,
        choices: Tensor,
        shift: float | None,
        scale: float | None,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if shift is not None and not math.isfinite(shift):
            raise ValueError(f"Expected a finite shift. Got {shift}.")
        if scale is not None and not 0 < scale < math.inf:
            raise ValueError(f"Expected scale > 0. Got {scale}.")
        self.search_space = FiniteSpace(choices)
        if self.search_space.dim != self.dim:
            raise BotorchTensorDimensionError(
                f"Expected choices of shape n x {self.dim}. "
                f"Got choices.shape={tuple(self.search_space.choices.shape)}."
            )
        super().__init__(InputLayout(self.dim), noise_variance, generator)
        values = self.function(self.choices)
        self.shift = values.mean().item() if shift is None else shift
        self.scale = values.std(correction=0).item() if scale is None else scale
        if self.scale == 0:
            raise InputDataError("Expected choices whose values differ. Got one value at all.")
        self._best = int(argmax(values))

    @property
    def choices(self) -> Tensor:
        """The actions, ``n x d``."""
        return self.search_space.choices

    @property
    def bounds(self) -> Tensor:
        """Smallest and largest value of each column of the choices, ``2 x d``."""
        return self.search_space.bounds

    @abstractmethod
    def function(self, X: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` before shift and scale."""

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest reward among the choices, which does not depend on time."""
        best = self.layout.rows(self.optimal_action(t).unsqueeze(0), t)
        return self.evaluate_true(best).item()

    def optimal_action(self, t: float) -> Tensor:
        """Return the choice, ``d``, with the largest reward."""
        return self.choices[self._best].clone()

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return (self.function(X[:, : self.dim]) - self.shift) / self.scale


class ExampleFunction(StaticFunction):
    r"""The function :math:`f(x) = \sin x + \cos x + 0.1 x`, with two peaks of different height.

    Bedi et al., (4.1). The paper does not state the domain; the default is 1,000 points of [0, 10].

    Args:
        choices: The actions, ``n x 1``; None is the default domain.
        shift: Number subtracted from the function; None is its mean over the choices.
        scale: Number that the difference is divided by; None is its standard deviation over the
            choices.
        noise_variance: Variance of the observation noise, in the unit of the reward.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        BotorchTensorDimensionError: if ``choices`` has another width.
        InputDataError: if a choice is not finite, the choices contain duplicates, or, with
            ``scale=None``, the function has the same value at all of them.
        ValueError: if ``shift`` is not finite, or ``scale`` not positive.
    """

    dim = 1

    def __init__(
        self,
        choices: Tensor | None = None,
        shift: float | None = 0.0,
        scale: float | None = 1.0,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if choices is None:
            choices = 10 * unit_grid(1000, dim=1)
        super().__init__(choices, shift, scale, noise_variance, generator)

    def function(self, X: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 1`` before shift and scale."""
        x = X[:, 0]
        return x.sin() + x.cos() + 0.1 * x


class Rosenbrock(StaticFunction):
    r"""The function :math:`f(x, y) = -(a - x)^2 - b\,(y - x^2)^2`, a ridge with maximum (a, a²).

    Bedi et al., (4.2), negated, since rewards are maximized. The paper does not state the domain;
    the default is 50 x 50 points of [-2, 2] x [-1, 3]. The function spans two decades there, so
    rewards are standardized over the choices by default.

    Args:
        choices: The actions, ``n x 2``; None is the default domain.
        a: First coordinate of the maximum.
        b: Curvature across the ridge, above 0.
        shift: Number subtracted from the function; None is its mean over the choices.
        scale: Number that the difference is divided by; None is its standard deviation over the
            choices.
        noise_variance: Variance of the observation noise, in the unit of the reward.
        generator: Source of the noise; default a new one with a fixed seed.

    Raises:
        BotorchTensorDimensionError: if ``choices`` has another width.
        InputDataError: if a choice is not finite, the choices contain duplicates, or, with
            ``scale=None``, the function has the same value at all of them.
        ValueError: if ``shift`` or ``a`` is not finite, or ``scale`` or ``b`` not positive.
    """

    dim = 2

    def __init__(
        self,
        choices: Tensor | None = None,
        a: float = 1.0,
        b: float = 10.0,
        shift: float | None = None,
        scale: float | None = None,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
    ):
        if not math.isfinite(a) or not 0 < b < math.inf:
            raise ValueError(f"Expected a finite a, and b > 0. Got a={a}, b={b}.")
        self.a = a
        self.b = b
        if choices is None:
            choices = 4 * unit_grid(50) - torch.tensor([2.0, 1.0], dtype=torch.float64)
        super().__init__(choices, shift, scale, noise_variance, generator)

    def function(self, X: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x 2`` before shift and scale."""
        x, y = X.unbind(-1)
        return -((self.a - x) ** 2) - self.b * (y - x**2) ** 2
