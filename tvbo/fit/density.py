"""The posterior density of hyperparameters, of any model by GPyTorch.

Optimizers are imported where they are used: a run is opened and told without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import fast_computations
from numpy.typing import NDArray
from torch import Generator

from tvbo.kernels import TemporalKernel
from tvbo.models.at_bounds import AtBound, parameters_at_bounds
from tvbo.models.time_varying_gp import TimeVaryingGP
from tvbo.randomness import seeded

Array = NDArray[np.float64]

OPTIONS = {"ftol": 1e-13, "gtol": 1e-8}
"""Of L-BFGS-B. With SciPy's own tolerances a fit may stop well before its optimum, at a place that
depends on where it began; with these, errors of rounding move it by less than 1e-6."""


def maximum(
    negative: Callable[[Array], tuple[float, Array]], start: Array, bounds: Array
) -> tuple[float, Array]:
    """Return the log density at the maximum that L-BFGS-B finds, and where it is.

    The density is not finite if the search failed.

    Args:
        negative: Minus the log density at ``p`` hyperparameters, and its gradient.
        start: Where the search begins, ``p``.
        bounds: Lower and upper bounds, ``p x 2``.
    """
    from scipy.optimize import minimize

    theta, value = start, math.nan
    for _ in range(2):
        result = minimize(
            negative, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS
        )
        theta, value = result.x, float(result.fun)
        if result.success or not math.isfinite(value):
            break
        # A line search that found no larger value. With its memory of curvatures cleared,
        # L-BFGS goes on where there is one, and stops at once where there is none.
    return -value, theta


class ModelPosterior:
    """Log posterior density of the parameters of any model, by GPyTorch.

    Log determinants are computed by Cholesky factors for any number of observations, since
    estimates of them are random.

    Args:
        model: Of one output and no batch, with its parameters by default; it has those that were
            evaluated last afterwards.

    Attributes:
        default: Its parameters by default, ``p``.
        bounds: Their lower and upper bounds, ``p x 2``.
    """

    def __init__(self, model: TimeVaryingGP):
        from botorch.optim.closures import get_loss_closure_with_grads
        from botorch.optim.closures.core import NdarrayOptimizationClosure
        from botorch.optim.utils import get_parameters_and_bounds

        self.model = model
        self._mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        parameters, bounds = get_parameters_and_bounds(self._mll, requires_grad=True)
        loss = get_loss_closure_with_grads(self._mll, parameters)
        self._loss = NdarrayOptimizationClosure(loss, parameters)
        self.default = self._loss.state if parameters else np.empty(0)
        each: list[Any] = [bounds.get(name, (-math.inf, math.inf)) for name in parameters]
        counts = [parameter.numel() for parameter in parameters.values()]
        self.bounds = np.repeat(np.array(each, dtype=float).reshape(-1, 2), counts, axis=0)

    @property
    def num_learned(self) -> int:
        """How many numbers are learned."""
        return len(self.default)

    def negative(self, theta: Array) -> tuple[float, Array]:
        """Return minus the log density at ``p`` parameters, and its gradient."""
        num = len(self.model.train_targets)
        with fast_computations(log_prob=False):
            value, gradient = self._loss(theta)
        return num * float(value), num * gradient

    def maximize(self, start: Array | None) -> tuple[float, Array]:
        """Return the log density at the maximum found from a start, None is the default."""
        return maximum(self.negative, self.default if start is None else start, self.bounds)

    def named(self, theta: Array) -> dict[str, list[float]]:
        """Return the parameters that require gradients by name."""
        parts = self._at(theta).named_parameters()
        return {name: part.flatten().tolist() for name, part in parts if part.requires_grad}

    def temporal_kernels(self, theta: Array) -> Iterable[TemporalKernel]:
        """Return the kernels over time."""
        return self._at(theta).temporal_kernels

    def at_bounds(self, theta: Array) -> Iterable[AtBound]:
        """Return the parameters that are at a bound."""
        return parameters_at_bounds(self._at(theta))

    def restart(self, generator: Generator) -> tuple[float, Array]:
        """Return what :meth:`maximize` does after BoTorch's fit, from draws from the priors.

        Raises:
            ModelFittingError: if the search fails from all of them.
        """
        from botorch.fit import fit_gpytorch_mll

        self._loss.state = self.default
        with seeded(generator), fast_computations(log_prob=False):
            fit_gpytorch_mll(self._mll, optimizer_kwargs={"options": OPTIONS})
        self._mll.train()
        return self.maximize(self._loss.state)

    def _at(self, theta: Array) -> TimeVaryingGP:
        """Return the model with other parameters."""
        self._loss.state = theta
        return self.model
