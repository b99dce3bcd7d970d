"""Static test functions whose last input is time."""

from __future__ import annotations

import torch
from botorch.test_functions import SyntheticTestFunction
from torch import Generator, Tensor

from tvbo.test_functions.box_problem import BoxProblem


class DynamicFunction(BoxProblem):
    r"""A static test function whose last input is time, to be maximized (Bardou et al., 2024).

    Time 0 is the lower bound of the last input, and ``horizon`` its upper bound. Values are
    standardized. The optimum is found by a search without randomness, once per time, unless it is
    given.

    Bardou, Thiran and Ranieri, "This Too Shall Pass: Removing Stale Observations in Dynamic
    Bayesian Optimization".

    Args:
        function: A function of ``d + 1`` inputs, to be maximized: one of BoTorch's with
            ``negate=True``.
        horizon: Time that the upper bound of the last input stands for.
        noise_variance: Variance of the observation noise, in the unit of the standardized value.
        generator: Source of the noise; default a new one with a fixed seed.
        starts: Actions, ``m x d``, that the search for the optimum also starts from.
        best: The best action, ``d``, where it is known and the same at all times.

    Raises:
        ValueError: if ``horizon`` is not positive, or ``noise_variance`` negative.
        InputDataError: when evaluated, if a time is outside ``[0, horizon]``.

    Example:
        >>> problem = DynamicFunction(Hartmann(3, negate=True), horizon=80)
    """

    def __init__(
        self,
        function: SyntheticTestFunction,
        horizon: float,
        noise_variance: float = 0.0,
        generator: Generator | None = None,
        starts: Tensor | None = None,
        best: Tensor | None = None,
    ):
        bounds = torch.as_tensor(function.bounds, dtype=torch.float64)
        super().__init__(bounds[:, :-1], horizon, noise_variance, generator)
        self.static_function = function
        self.time_bounds = bounds[:, -1]
        """Values of the last input at times 0 and ``horizon``."""
        self.starts = starts
        self.best = best

    def function(self, X: Tensor, t: Tensor) -> Tensor:
        """Return the values, ``n``, of actions ``n x d`` at times ``n`` before standardization."""
        low, high = self.time_bounds
        last = low + (high - low) * (t / self.horizon)
        inputs = torch.cat([X, last.unsqueeze(-1)], dim=-1)
        values: Tensor = self.static_function(inputs, noise=False)
        return values

    def _best_action(self, t: float) -> Tensor:
        return self._search(t, self.starts) if self.best is None else self.best


class Schwefel(SyntheticTestFunction):
    r"""Schwefel's function, which BoTorch does not have.

    .. math:: f(x) = 418.9829\,d - \sum_i x_i \sin \sqrt{|x_i|}

    Args:
        dim: Number of inputs, each in [-500, 500].
        negate: Whether to negate the function.
    """

    _optimal_value = 0.0
    _check_grad_at_opt = False

    def __init__(self, dim: int = 2, negate: bool = False):
        self.dim = dim
        self.continuous_inds = list(range(dim))
        self._bounds = [(-500.0, 500.0)] * dim
        self._optimizers = [(420.968746,) * dim]
        super().__init__(negate=negate)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return 418.9829 * self.dim - (X * X.abs().sqrt().sin()).sum(-1)
