"""The maximum of an acquisition function over a finite set, a box, or a mixed space."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.sampling import boltzmann_sample, draw_sobol_samples
from botorch.utils.transforms import normalize, unnormalize
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import Module

from tvbo.randomness import seeded
from tvbo.rounding import argmax, tied_for_largest
from tvbo.spaces import AskContext, Box, FiniteSpace, MixedSpace
from tvbo.spaces.search_space import SearchSpace

Array = NDArray[np.float64]

MAX_DENSE_ROWS = 128
"""Rows that a dense model evaluates at once, so that its arrays stay in the cache."""

MIXED_OPTIONS = {
    "initialization_strategy": "random",
    "num_spray_points": 0,
    "maxiter_alternating": 10,
}
"""Starts drawn at random: a relaxation of categories to numbers has no gradient in them, and the
columns of a model's training inputs are not those that are searched. At most 10 rounds of numbers
and categories in turns, of BoTorch's 64: where a constraint bends the function, the others find
nothing, and take most of the time."""

LONG_SEARCH = {"maxiter": 2000}
SEARCH = {**LONG_SEARCH, "pgtol": 1e-4, "factr": 1e9}
"""Options of the search of a box: of any function, and of one in closed form, in standard
deviations of the outcomes, which ends where the maximum is some 1e-7 higher at most."""

NUM_PROBES = 32
"""Number of actions that tell the spread of an acquisition function."""


def maximize(
    acq_function: AcquisitionFunction,
    search_space: SearchSpace,
    ask_context: AskContext,
    generator: Generator,
    q: int = 1,
) -> Tensor:
    """Return the actions, ``q x d``, that maximize an acquisition function.

    A box is searched by L-BFGS-B in the unit cube, the actions of a batch jointly; a mixed space by
    ``optimize_acqf_mixed_alternating``; of a finite set, all actions are evaluated. There the
    actions of a batch are chosen one after another. Of values that are tied
    (:mod:`tvbo.rounding`), the generator chooses one, in a box the first start counts.

    Args:
        acq_function: A function of rows ``b x q x (d + c + 1)``, or one that is known at some
            ``candidates``, ``n x d``, alone, by its ``values``, ``n``.
        search_space: The actions.
        ask_context: Gives the time and the context, which are held fixed.
        generator: Source of randomness.
        q: Number of actions.
    """
    if (values := getattr(acq_function, "values", None)) is not None:
        candidates: Tensor = cast(Any, acq_function).candidates
        return candidates[[int(argmax(values, generator))]]
    if isinstance(search_space, Box):
        return _over_box(acq_function, search_space, ask_context, generator, q)
    chosen: list[Tensor] = []
    while len(chosen) < q:
        if chosen:
            acq_function.set_X_pending(ask_context.rows(torch.cat(chosen)))
        if isinstance(search_space, FiniteSpace):
            choices = search_space.rows
            rows = ask_context.rows(choices).unsqueeze(-2)
            size = rows_at_once(getattr(acq_function, "model", None)) or len(rows)
            with torch.no_grad():
                values = torch.cat([acq_function(part) for part in rows.split(size)])
            index = argmax(values, generator)
            chosen.append(choices[index : index + 1].clone())
        else:
            chosen.append(_over_mixed(acq_function, search_space, ask_context, generator))
    return torch.cat(chosen)


def rows_at_once(model: Any) -> int | None:
    """Return how many rows to evaluate at once; None: all, as models do that remember them."""
    parts = getattr(model, "models", [model])
    remember = all(getattr(part, "remembers_rows", False) for part in parts)
    return None if remember else MAX_DENSE_ROWS


@runtime_checkable
class ClosedFormAcquisition(Protocol):
    """An acquisition function of single rows that returns its gradient too, in NumPy."""

    def value_and_gradient(self, X: Array) -> tuple[Array, Array]:
        """Return values ``b`` at rows ``b x d'``, and gradients ``b x d'``."""


class InUnitCube(AcquisitionFunction):
    """An acquisition function of points of the unit cube.

    L-BFGS-B stops by an absolute tolerance of the gradient, and its first step has length one: both
    mean the same in any unit of the actions only if these are scaled.

    Args:
        acq_function: A function of rows ``b x q x d'``.
        bounds: Smallest and largest value of each column that is searched, ``2 x d``.
        rows: Returns the rows of columns that are searched, ``... x d``.
        unit: Unit of the values, since searches stop by an absolute tolerance of these as well.

    Attributes:
        cube: Bounds of the cube, ``2 x d``.
    """

    def __init__(
        self,
        acq_function: AcquisitionFunction,
        bounds: Tensor,
        rows: Callable[[Tensor], Tensor],
        unit: float = 1.0,
    ):
        # Not every acquisition function has a model, as BoTorch's base class does.
        Module.__init__(self)
        self._acq_function, self._rows, self._unit = acq_function, rows, unit
        self._bounds = bounds
        self.cube = torch.stack([torch.zeros_like(bounds[0]), torch.ones_like(bounds[0])])

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, at points ``b x q x d``, or at ``q x d``."""
        rows = self._rows(unnormalize(X if X.ndim > 2 else X.unsqueeze(0), self._bounds, False))
        values: Tensor = self._acq_function(rows)
        return values / self._unit


def _over_box(
    acq_function: AcquisitionFunction,
    search_space: Box,
    ask_context: AskContext,
    generator: Generator,
    q: int,
) -> Tensor:
    bounds = search_space.bounds
    in_cube = InUnitCube(acq_function, bounds, ask_context.rows)

    def by_graph(points: Array) -> tuple[Array, Array]:
        X = torch.from_numpy(points).view(len(points), q, -1).requires_grad_()
        values = in_cube(X)
        if not values.requires_grad:
            # A constant acquisition, such as a prior mean, has no gradient to follow.
            return -values.numpy(), np.zeros_like(points)
        (gradients,) = torch.autograd.grad(values.sum(), X)
        return -values.detach().numpy(), -gradients.flatten(1).numpy()

    from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched

    def in_closed_form(points: Array) -> tuple[Array, Array]:
        # A graph takes longer than the numbers do.
        (lower, upper), row = bounds.numpy(), ask_context.rows(bounds[:1]).numpy()
        rows = row.repeat(len(points), axis=0)
        rows[:, : len(lower)] = lower + points * (upper - lower)
        found, gradients = cast(ClosedFormAcquisition, acq_function).value_and_gradient(rows)
        return -found, -gradients[:, : len(lower)] * (upper - lower)

    has_closed_form = q == 1 and isinstance(acq_function, ClosedFormAcquisition)
    negative, options = (in_closed_form, SEARCH) if has_closed_form else (by_graph, LONG_SEARCH)
    with seeded(generator):
        own = getattr(acq_function, "raw_samples", None)
        starts = _starts(in_cube, search_space, q, own).flatten(1).numpy()
        cube = [(0.0, 1.0)] * starts.shape[-1]
        points, lowest, _ = fmin_l_bfgs_b_batched(negative, starts, cube, **options)
    best = torch.from_numpy(points[int(argmax(torch.from_numpy(-lowest)))]).view(q, -1)
    return unnormalize(best, bounds, False).clamp(*bounds)


def _starts(in_cube: InUnitCube, search_space: Box, q: int, own: int | None) -> Tensor:
    """Return the points at which the search starts, ``num_restarts x q x d``.

    As in BoTorch's ``initialize_q_batch``, the best of the raw samples and others drawn with
    probabilities that grow with their values; values that differ by rounding are ties. Of a
    function with a number ``raw_samples`` of its own, one with many maxima that is evaluated in
    no time, they are the best of as many, ``own``.
    """
    seed = int(torch.randint(2**31 - 1, (1,)))
    samples = draw_sobol_samples(in_cube.cube, n=own or search_space.raw_samples, q=q, seed=seed)
    with torch.no_grad():
        values = in_cube(samples)
    tied = tied_for_largest(values)
    if tied.all():
        # Standardizing a flat acquisition would amplify its rounding errors.
        return samples[torch.randperm(len(samples))[: search_space.num_restarts]]
    if own is not None:
        return samples[values.topk(min(search_space.num_restarts, own)).indices]
    places = boltzmann_sample(values, num_samples=search_space.num_restarts, eta=1.0)
    best = tied.to(torch.uint8).argmax()
    if not (places == best).any():
        places[-1] = best
    return samples[places]


def _over_mixed(
    acq_function: AcquisitionFunction,
    search_space: MixedSpace,
    ask_context: AskContext,
    generator: Generator,
) -> Tensor:
    varying = search_space.parameters.varying
    low, high = bounds = torch.cat([part.search_bounds for part in varying], dim=-1)
    discrete: dict[int, list[float]] = {}
    categories: dict[int, list[float]] = {}
    for i, part in enumerate(varying):
        # An integer within a step of the newest trial may have one value.
        if (values := part.searched_values) is not None and len(values) > 1:
            shares = ((torch.tensor(values) - low[i]) / (high[i] - low[i])).tolist()
            (categories if part.width > 1 else discrete)[i] = shares
    with torch.no_grad():
        probes = acq_function(
            ask_context.rows(search_space.sample(generator, NUM_PROBES)).unsqueeze(-2)
        )
    if tied_for_largest(probes).all():
        # A constant acquisition, such as a prior mean.
        return search_space.sample(generator)

    from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating

    def rows(columns: Tensor) -> Tensor:
        return ask_context.rows(search_space.parameters.expand(columns))

    in_cube = InUnitCube(acq_function, bounds, rows, probes.std().item())
    with seeded(generator), warnings.catch_warnings():
        # A line search that ends early has reached rounding error at a maximum.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        point, _ = optimize_acqf_mixed_alternating(
            in_cube,
            bounds=in_cube.cube,
            discrete_dims=discrete,
            cat_dims=categories,
            raw_samples=search_space.raw_samples,
            num_restarts=search_space.num_restarts,
            # Where all are searched as numbers, such as wide integers, it hands over to
            # `optimize_acqf`, whose solver does not know this option.
            options=dict(MIXED_OPTIONS) if discrete or categories else None,
        )
    for i, shares in categories.items():
        others = point.repeat(len(shares), 1)
        others[:, i] = torch.tensor(shares, dtype=torch.float64)
        with torch.no_grad():
            place = argmax(in_cube(others.unsqueeze(-2)), generator)
        point = others[place : place + 1]
    point = _after_rounding(in_cube, search_space, point)
    columns = unnormalize(point, bounds)
    return search_space.parameters.nearest(search_space.parameters.expand(columns))


def _after_rounding(in_cube: InUnitCube, search_space: MixedSpace, point: Tensor) -> Tensor:
    """Round the integers that were searched as numbers, then search the floats once more.

    The best floats are others beside the rounded integers: a constraint that held before, at
    the limit, may not hold with the floats of the search.

    Args:
        in_cube: The acquisition function.
        search_space: The mixed space.
        point: What was found, ``1 x count``.
    """
    varying = search_space.parameters.varying
    is_float = [math.isinf(part.count) for part in varying]
    relaxed = [
        i for i, part in enumerate(varying) if not is_float[i] and part.searched_values is None
    ]
    bounds = torch.cat([part.search_bounds for part in varying], dim=-1)
    columns = unnormalize(point, bounds)
    for i in relaxed:
        columns[:, i : i + 1] = varying[i].nearest(columns[:, i : i + 1])
    rounded = point.clone()
    rounded[:, relaxed] = normalize(columns, bounds)[:, relaxed]
    if not relaxed or not any(is_float):
        return rounded
    from botorch.generation import gen_candidates_scipy

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
