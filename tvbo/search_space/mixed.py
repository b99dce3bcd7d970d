"""Actions of floats, integers and categories together."""

from __future__ import annotations

import math
import warnings

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.warnings import BotorchWarning
from botorch.generation import gen_candidates_scipy
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from torch import Generator, Tensor

from tvbo.randomness import seeded
from tvbo.rounding import any_largest, tied_for_largest
from tvbo.search_space.base import AskContext, check_action
from tvbo.search_space.batch import one_after_another
from tvbo.search_space.parameters import Parameters
from tvbo.values import copies_tensors

OPTIONS = {"initialization_strategy": "random", "maxiter_alternating": 10}
"""Starts drawn at random: a relaxation of categories to numbers has no gradient in them. At most 10
rounds of numbers and categories in turns, of BoTorch's 64: where a constraint bends the function,
the others find nothing, and take most of the time."""

NUM_PROBES = 32
"""Number of actions that tell the spread of an acquisition function."""


class _Expanded(AcquisitionFunction):
    """An acquisition function of the columns that are searched, one for each varying parameter.

    Args:
        acq_function: A function of rows ``b x 1 x (d + c + 1)``.
        parameters: Give the ``d`` columns of an action.
        unit: Unit of the values, since the search stops by an absolute tolerance.
    """

    def __init__(self, acq_function: AcquisitionFunction, parameters: Parameters, unit: float):
        super().__init__(acq_function.model)
        self._acq_function = acq_function
        self._columns = parameters
        self._unit = unit

    def rows(self, searched: Tensor) -> Tensor:
        """Return rows of an action, context and time, of those that are searched."""
        count = len(self._columns.varying)
        action = self._columns.expand(searched[..., :count])
        return torch.cat([action, searched[..., count:]], dim=-1)

    def forward(self, X: Tensor) -> Tensor:
        """Return the values at ``b x 1 x d'``, or at ``1 x d'``."""
        values: Tensor = self._acq_function(self.rows(X.view(-1, 1, X.shape[-1]))) / self._unit
        return values


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
        fixed = ask_context.layout.fixed_features(ask_context.t, ask_context.context)
        features = torch.tensor([fixed[i] for i in sorted(fixed)], dtype=torch.float64)
        bounds = torch.cat([part.search_bounds for part in varying], dim=-1)
        discrete: dict[int, list[float]] = {}
        categories: dict[int, list[float]] = {}
        for i, part in enumerate(varying):
            if (values := part.searched_values) is not None:
                (categories if part.width > 1 else discrete)[i] = values
        with torch.no_grad():
            probes = acq_function(
                ask_context.rows(self.sample(generator, NUM_PROBES)).unsqueeze(-2)
            )
        if tied_for_largest(probes).all():
            # A constant acquisition, such as a prior mean.
            return self.sample(generator)
        expanded = _Expanded(acq_function, self.parameters, probes.std().item())
        with seeded(generator), warnings.catch_warnings():
            # A line search that ends early has reached rounding error at a maximum.
            warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
            # It looks for starts among training inputs, which a list of models does not have.
            warnings.filterwarnings("ignore", "Failed to extract X_baseline", BotorchWarning)
            row, _ = optimize_acqf_mixed_alternating(
                expanded,
                bounds=torch.cat([bounds, features.expand(2, -1)], dim=-1),
                discrete_dims=discrete,
                cat_dims=categories,
                raw_samples=self.raw_samples,
                num_restarts=self.num_restarts,
                # Where all are searched as numbers, such as wide integers, it hands over to
                # `optimize_acqf`, whose solver does not know this option.
                options=OPTIONS if discrete or categories else None,
                fixed_features={len(varying) + i: x for i, x in enumerate(features.tolist())},
            )
        for i, values in categories.items():
            others = row.repeat(len(values), 1)
            others[:, i] = torch.tensor(values, dtype=torch.float64)
            with torch.no_grad():
                place = any_largest(expanded(others.unsqueeze(-2)), generator)
            row = others[place : place + 1]
        row = self._after_rounding(expanded, row, bounds)
        return self.parameters.nearest(expanded.rows(row)[:, : self.dim])

    def _after_rounding(self, expanded: _Expanded, row: Tensor, bounds: Tensor) -> Tensor:
        """Round the integers that were searched as numbers, then search the floats once more.

        The best floats are others beside the rounded integers: a constraint that held before, at
        the limit, may not hold with the floats of the search.

        Args:
            expanded: The acquisition function.
            row: What was found, ``1 x d'``.
            bounds: Of the columns that are searched, ``2 x count``.
        """
        varying = self.parameters.varying
        count = len(varying)
        is_float = [math.isinf(part.count) for part in varying]
        rounded = row.clone()
        for i, part in enumerate(varying):
            if not is_float[i] and part.searched_values is None:
                rounded[:, i : i + 1] = part.nearest(row[:, i : i + 1])
        if torch.equal(rounded, row) or not any(is_float):
            return rounded
        held = {i: x for i, x in enumerate(rounded[0].tolist()) if i >= count or not is_float[i]}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
            (found,), _ = gen_candidates_scipy(
                rounded.unsqueeze(0),
                expanded,
                lower_bounds=torch.cat([bounds[0], rounded[0, count:]]),
                upper_bounds=torch.cat([bounds[1], rounded[0, count:]]),
                fixed_features=held,
            )
        with torch.no_grad():
            before, after = expanded(torch.stack([rounded, found]))
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
