"""A box of actions."""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError
from botorch.generation import gen_candidates_scipy
from botorch.optim import optimize_acqf
from botorch.utils.sampling import boltzmann_sample, draw_sobol_samples
from torch import Generator, Tensor

from tvbo.randomness import seeded
from tvbo.rounding import first_largest, tied_for_largest
from tvbo.spaces.base import AskContext, check_action
from tvbo.spaces.bounds import Bounds, as_bounds
from tvbo.spaces.closed_form import ClosedFormAcquisition, gen_candidates_closed_form
from tvbo.spaces.parameter import SINGLE_PRECISION
from tvbo.spaces.parameters import Parameters
from tvbo.spaces.unit_cube import InUnitCube, unit_bounds
from tvbo.values import copies_tensors


@copies_tensors("bounds")
class Box:
    """All actions between two bounds.

    Args:
        bounds: ``2 x d`` tensor or array, lower then upper, or a list of ``d`` pairs (lower,
            upper), as read by :func:`tvbo.spaces.as_bounds`.
        num_restarts: Starts of ``optimize_acqf``.
        raw_samples: Points from which the starts are picked.
        parameters: Names and types of the parameters; None where actions are tensors.

    Raises:
        BotorchTensorDimensionError: if ``bounds`` has another shape.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound not below its upper
            one, or a list could be read in both ways.
    """

    parameters: Parameters | None = None

    def __init__(
        self,
        bounds: Bounds,
        num_restarts: int = 4,
        raw_samples: int = 64,
        parameters: Parameters | None = None,
    ):
        self.parameters = parameters
        self.bounds = as_bounds("bounds", bounds)
        self.dim = self.bounds.shape[-1]
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples

    def maximize(
        self,
        acq_function: AcquisitionFunction,
        ask_context: AskContext,
        generator: Generator,
        q: int = 1,
    ) -> Tensor:
        """Return the maximizer found by BoTorch's ``optimize_acqf`` at fixed time and context.

        It searches the unit cube. The actions of a batch are searched jointly.
        Of the restarts whose values are tied (:mod:`tvbo.rounding`), the first one is taken.
        """
        in_cube = InUnitCube(acq_function, self.bounds, ask_context.rows)
        cube = unit_bounds(self.dim)
        search: Any = gen_candidates_closed_form
        if q > 1 or not isinstance(acq_function, ClosedFormAcquisition):
            search = gen_candidates_scipy
            if not in_cube(cube.mean(dim=0, keepdim=True).requires_grad_()).requires_grad:
                # A constant acquisition, such as a prior mean, has no gradient to follow.
                return torch.cat([self.sample(generator) for _ in range(q)])
        own = getattr(acq_function, "raw_samples", None)
        with seeded(generator):
            points, values = optimize_acqf(
                in_cube,
                bounds=cube,
                q=q,
                num_restarts=self.num_restarts,
                batch_initial_conditions=self._starts(in_cube, q, own),
                gen_candidates=search,
                return_best_only=False,
                # A line search that ends early has reached rounding error at a maximum.
                retry_on_optimization_warning=False,
            )
        assert values is not None
        return in_cube.columns(points[int(first_largest(values))]).clamp(*self.bounds)

    def _starts(self, in_cube: InUnitCube, q: int, own: int | None) -> Tensor:
        """Return the points at which the search starts, ``num_restarts x q x d``.

        As in BoTorch's ``initialize_q_batch``, the best of the raw samples and others drawn with
        probabilities that grow with their values; values that differ by rounding are ties. Of a
        function with a number ``raw_samples`` of its own, one with many maxima that is evaluated in
        no time, they are the best of as many, ``own``.
        """
        seed = int(torch.randint(2**31 - 1, (1,)))
        cube = unit_bounds(self.dim)
        samples = draw_sobol_samples(cube, n=own or self.raw_samples, q=q, seed=seed)
        with torch.no_grad():
            values = in_cube(samples)
        tied = tied_for_largest(values)
        if tied.all():
            # Standardizing a flat acquisition would amplify its rounding errors.
            return samples[torch.randperm(len(samples))[: self.num_restarts]]
        if own is not None:
            return samples[values.topk(min(self.num_restarts, own)).indices]
        places = boltzmann_sample(values, num_samples=self.num_restarts, eta=1.0)
        best = tied.to(torch.uint8).argmax()
        if not (places == best).any():
            places[-1] = best
        return samples[places]

    def sample(self, generator: Generator) -> Tensor:
        """Return one action, ``1 x d``, drawn uniformly from the box."""
        unit = torch.rand(1, self.dim, dtype=torch.float64, generator=generator)
        return self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X`` clamped to the bounds; raise if a row is outside by more than rounding."""
        check_action(X, self.dim)
        slack = SINGLE_PRECISION * self.bounds.abs().amax(dim=0)
        outside = ((self.bounds[0] - slack > X) | (self.bounds[1] + slack < X)).any(dim=-1)
        if outside.any():
            raise InputDataError(
                f"Expected actions within bounds {self.bounds.tolist()}. "
                f"Got {X[outside][0].tolist()}."
            )
        return X.clamp(*self.bounds)
