"""Actions of floats, integers and categories together."""

from __future__ import annotations

import math
import warnings

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.generation import gen_candidates_scipy
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from torch import Generator, Tensor

from tvbo.randomness import seeded
from tvbo.rounding import any_largest, tied_for_largest
from tvbo.spaces.base import AskContext, check_action
from tvbo.spaces.batch import one_after_another
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.unit_cube import InUnitCube, unit_bounds
from tvbo.values import copies_tensors

OPTIONS = {
    "initialization_strategy": "random",
    "num_spray_points": 0,
    "maxiter_alternating": 10,
}
"""Starts drawn at random: a relaxation of categories to numbers has no gradient in them, and the
columns of a model's training inputs are not those that are searched. At most 10 rounds of numbers
and categories in turns, of BoTorch's 64: where a constraint bends the function, the others find
nothing, and take most of the time."""

NUM_PROBES = 32
"""Number of actions that tell the spread of an acquisition function."""


@copies_tensors("bounds")
class MixedSpace:
    """Actions of floats, integers and categories.

    Args:
        parameters: The parameters; at least one is an integer or a category.
        num_restarts: Starts of the search.
        raw_samples: Points from which the starts are picked.
    """

    def __init__(self, parameters: Parameters, num_restarts: int = 4, raw_samples: int = 128):
        self.parameters = parameters
        self.bounds = parameters.bounds
        self.dim = parameters.dim
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples

    def maximize(
        self,
        acq_function: AcquisitionFunction,
        ask_context: AskContext,
        generator: Generator,
        q: int = 1,
    ) -> Tensor:
        """Return the maximizer found by BoTorch's ``optimize_acqf_mixed_alternating``.

        Of the values of each category that are tied there (:mod:`tvbo.rounding`), such as those not
        tried yet, the generator chooses one. The actions of a batch are chosen one after another.
        """

        def best(acq_function: AcquisitionFunction) -> Tensor:
            return self._maximize_one(acq_function, ask_context, generator)

        return one_after_another(best, acq_function, ask_context.rows, q)

    def _maximize_one(
        self, acq_function: AcquisitionFunction, ask_context: AskContext, generator: Generator
    ) -> Tensor:
        varying = self.parameters.varying
        low, high = bounds = torch.cat([part.search_bounds for part in varying], dim=-1)
        discrete: dict[int, list[float]] = {}
        categories: dict[int, list[float]] = {}
        for i, part in enumerate(varying):
            if (values := part.searched_values) is not None:
                shares = ((torch.tensor(values) - low[i]) / (high[i] - low[i])).tolist()
                (categories if part.width > 1 else discrete)[i] = shares
        with torch.no_grad():
            probes = acq_function(
                ask_context.rows(self.sample(generator, NUM_PROBES)).unsqueeze(-2)
            )
        if tied_for_largest(probes).all():
            # A constant acquisition, such as a prior mean.
            return self.sample(generator)

        def rows(columns: Tensor) -> Tensor:
            return ask_context.rows(self.parameters.expand(columns))

        in_cube = InUnitCube(acq_function, bounds, rows, probes.std().item())
        with seeded(generator), warnings.catch_warnings():
            # A line search that ends early has reached rounding error at a maximum.
            warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
            point, _ = optimize_acqf_mixed_alternating(
                in_cube,
                bounds=unit_bounds(len(varying)),
                discrete_dims=discrete,
                cat_dims=categories,
                raw_samples=self.raw_samples,
                num_restarts=self.num_restarts,
                # Where all are searched as numbers, such as wide integers, it hands over to
                # `optimize_acqf`, whose solver does not know this option.
                options=dict(OPTIONS) if discrete or categories else None,
            )
        for i, shares in categories.items():
            others = point.repeat(len(shares), 1)
            others[:, i] = torch.tensor(shares, dtype=torch.float64)
            with torch.no_grad():
                place = any_largest(in_cube(others.unsqueeze(-2)), generator)
            point = others[place : place + 1]
        point = self._after_rounding(in_cube, point)
        return self.parameters.nearest(self.parameters.expand(in_cube.columns(point)))

    def _after_rounding(self, in_cube: InUnitCube, point: Tensor) -> Tensor:
        """Round the integers that were searched as numbers, then search the floats once more.

        The best floats are others beside the rounded integers: a constraint that held before, at
        the limit, may not hold with the floats of the search.

        Args:
            in_cube: The acquisition function.
            point: What was found, ``1 x count``.
        """
        varying = self.parameters.varying
        is_float = [math.isinf(part.count) for part in varying]
        relaxed = [
            i for i, part in enumerate(varying) if not is_float[i] and part.searched_values is None
        ]
        columns = in_cube.columns(point)
        for i in relaxed:
            columns[:, i : i + 1] = varying[i].nearest(columns[:, i : i + 1])
        rounded = point.clone()
        rounded[:, relaxed] = in_cube.points(columns)[:, relaxed]
        if not relaxed or not any(is_float):
            return rounded
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
            (found,), _ = gen_candidates_scipy(
                rounded.unsqueeze(0),
                in_cube,
                lower_bounds=0.0,
                upper_bounds=1.0,
                fixed_features={i: x for i, x in enumerate(rounded[0].tolist()) if not is_float[i]},
            )
        with torch.no_grad():
            before, after = in_cube(torch.stack([rounded, found]))
        return found if after > before else rounded

    def sample(self, generator: Generator, n: int = 1) -> Tensor:
        """Return actions, ``n x d``, drawn uniformly."""
        shape = n, len(self.parameters.varying)
        return self.parameters.from_unit(
            torch.rand(shape, dtype=torch.float64, generator=generator)
        )

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` without rounding to single precision; raise if a row is no action."""
        check_action(X, self.dim)
        return self.parameters.snap(X)
