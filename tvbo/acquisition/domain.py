"""Sets of actions, and how an acquisition is maximized there at a fixed time and context."""

from __future__ import annotations

from typing import Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.optim import optimize_acqf
from botorch.utils.sampling import boltzmann_sample, draw_sobol_samples
from torch import Generator, Tensor

from tvbo.acquisition.situation import Situation
from tvbo.acquisition.thompson import DrawnValues
from tvbo.columns import Bounds, as_bounds, check_finite, check_last_dimension
from tvbo.finite_set import SINGLE_PRECISION, FiniteSet
from tvbo.randomness import seeded
from tvbo.ties import any_largest, first_largest, tied_for_largest

EVALUATION_CHUNK = 512


class Domain(Protocol):
    """A set of actions."""

    dim: int
    bounds: Tensor
    """Smallest and largest value of each column, ``2 x d``."""

    def maximize(
        self, acquisition: AcquisitionFunction, situation: Situation, generator: Generator
    ) -> Tensor:
        """The action, ``1 x d``, that maximizes ``acquisition`` at the present time and context."""

    def sample(self, generator: Generator) -> Tensor:
        """One action, ``1 x d``, uniformly at random."""

    def snap(self, X: Tensor) -> Tensor:
        """``X``, ``n x d``, as actions of this set: what single precision rounded off is undone.

        Raises:
            InputDataError: if a row is no action of this set.
        """


class Box:
    """All actions between two bounds.

    Args:
        bounds: ``2 x d`` tensor or array, lower then upper, or a list of ``d`` pairs (lower,
            upper); see :func:`tvbo.columns.as_bounds`.
        num_restarts: Starts of ``optimize_acqf``.
        raw_samples: Points from which the starts are picked.

    Raises:
        BotorchTensorDimensionError: if ``bounds`` is neither.
        InputDataError: if a bound is not finite or beyond 1e100, a lower bound not below its upper
            one, or a list could be read in both ways.
    """

    def __init__(self, bounds: Bounds, num_restarts: int = 4, raw_samples: int = 64):
        self.bounds = as_bounds("bounds", bounds)
        self.dim = self.bounds.shape[-1]
        self.num_restarts = num_restarts
        self.raw_samples = raw_samples

    def maximize(
        self, acquisition: AcquisitionFunction, situation: Situation, generator: Generator
    ) -> Tensor:
        """Maximize by BoTorch's ``optimize_acqf``, time and context as ``fixed_features``.

        Of the restarts whose values are tied (:mod:`tvbo.ties`), the first one is taken.
        """
        if isinstance(acquisition, DrawnValues):
            return acquisition.best()
        fixed = situation.columns.fixed_features(situation.t, situation.context)
        held = torch.tensor(list(fixed.values()), dtype=torch.float64)
        # The columns [context | time] follow the actions; their bounds are never searched.
        order = torch.tensor(list(fixed)).argsort()
        bounds = torch.cat([self.bounds, held[order].expand(2, -1)], dim=-1)
        probe = situation.rows(self.bounds.mean(dim=0, keepdim=True)).requires_grad_()
        if not acquisition(probe).requires_grad:
            # A prior mean, for one: all actions are alike, and there is no gradient to follow.
            return self.sample(generator)
        with seeded(generator):
            rows, values = optimize_acqf(
                acquisition,
                bounds=bounds,
                q=1,
                num_restarts=self.num_restarts,
                batch_initial_conditions=self._starts(acquisition, situation),
                fixed_features=dict(fixed),
                return_best_only=False,
                # A line search that ends early has met the rounding at a maximum.
                retry_on_optimization_warning=False,
            )
        best = int(first_largest(values))
        return rows[best, :, : self.dim].clamp(*self.bounds)

    def _starts(self, acquisition: AcquisitionFunction, situation: Situation) -> Tensor:
        """Rows from which the search starts, ``num_restarts x 1 x d'``.

        As in BoTorch's ``initialize_q_batch``, the best of the raw samples and others drawn with
        probabilities that grow with their values; but values that differ by rounding are alike.
        """
        seed = int(torch.randint(2**31 - 1, (1,)))
        samples = draw_sobol_samples(self.bounds, n=self.raw_samples, q=1, seed=seed)
        rows = situation.rows(samples)
        with torch.no_grad():
            values = acquisition(rows)
        tied = tied_for_largest(values)
        if tied.all():
            # Standardized, the rounding of a flat acquisition would look like a landscape.
            return rows[torch.randperm(len(rows))[: self.num_restarts]]
        places = boltzmann_sample(values, num_samples=self.num_restarts, eta=1.0)
        best = tied.to(torch.uint8).argmax()
        if not (places == best).any():
            places[-1] = best
        return rows[places]

    def sample(self, generator: Generator) -> Tensor:
        """Uniform in the box."""
        unit = torch.rand(1, self.dim, dtype=torch.float64, generator=generator)
        return self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])

    def snap(self, X: Tensor) -> Tensor:
        """``X`` within the bounds; raises if a row lies outside by more than rounding."""
        check_action(X, self.dim)
        slack = SINGLE_PRECISION * self.bounds.abs().amax(dim=0)
        outside = ((self.bounds[0] - slack > X) | (self.bounds[1] + slack < X)).any(dim=-1)
        if outside.any():
            raise InputDataError(
                f"Expected actions within bounds {self.bounds.tolist()}. "
                f"Got {X[outside][0].tolist()}."
            )
        return X.clamp(*self.bounds)


class Choices:
    """A finite set of actions.

    Args:
        choices: ``n x d``, one row per action, no two alike.
        chunk: Actions evaluated at once. Beyond some hundreds, memory traffic makes a dense GP
            slower, not faster; a streaming one takes them all.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite, or a row stands twice.
    """

    def __init__(self, choices: Tensor, chunk: int = EVALUATION_CHUNK):
        self.finite_set = FiniteSet(choices)
        self.choices = self.finite_set.choices
        self.bounds = torch.stack(self.choices.aminmax(dim=0))
        self.dim = self.finite_set.dim
        if chunk < 1:
            raise ValueError(f"Expected chunk >= 1. Got {chunk}.")
        self.chunk = chunk

    def maximize(
        self, acquisition: AcquisitionFunction, situation: Situation, generator: Generator
    ) -> Tensor:
        """Maximize by evaluating every action; the generator decides ties (:mod:`tvbo.ties`)."""
        if isinstance(acquisition, DrawnValues):
            return acquisition.best()
        rows = situation.rows(self.choices).unsqueeze(-2)
        with torch.no_grad():
            values = torch.cat([acquisition(part) for part in rows.split(self.chunk)])
        return self._row(any_largest(values, generator))

    def sample(self, generator: Generator) -> Tensor:
        """One of the choices, each as likely as another."""
        return self._row(int(torch.randint(len(self.choices), (1,), generator=generator)))

    def _row(self, index: int) -> Tensor:
        # A copy: a caller may change a trial's action without changing the set.
        return self.choices[index : index + 1].clone()

    def index(self, X: Tensor) -> Tensor:
        """Position of each row of ``X``, ``n x d``, among the choices, to single precision.

        Raises:
            InputDataError: if a row is none of the choices.
        """
        check_action(X, self.dim)
        return self.finite_set.index(X)

    def snap(self, X: Tensor) -> Tensor:
        """``X`` as the choices it stands for; raises if a row is none of them."""
        return self.choices[self.index(X)]


def make_domain(bounds: Bounds | None, choices: Tensor | None) -> Domain:
    """A box or a finite set, whichever of the two was given.

    Raises:
        ValueError: unless exactly one was given.
    """
    if (bounds is None) == (choices is None):
        raise ValueError(
            "Expected either bounds (2 x d) or choices (n x d). "
            f"Got {'neither' if bounds is None else 'both'}."
        )
    return Choices(choices) if bounds is None else Box(bounds)


def check_action(X: Tensor, dim: int) -> None:
    """Raise unless ``X`` is a finite ``n x d`` tensor."""
    if X.ndim != 2:
        raise BotorchTensorDimensionError(
            f"Expected X of shape n x {dim}. Got X.shape={tuple(X.shape)}."
        )
    check_last_dimension("X", X, dim)
    check_finite("X", X)
