"""BoTorch's acquisition functions, with what drift asks of them done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.sampling import SobolQMCNormalSampler
from torch import Generator, Size, Tensor

from tvbo.acquisition.analytic import Acquisition, unit_of
from tvbo.acquisition.incumbent import BestMean
from tvbo.randomness import default_generator, draw_seed, seeded
from tvbo.search_space import AskContext, FiniteSpace

NUM_SAMPLES = 128
"""Draws of a Monte-Carlo acquisition."""

NUM_CANDIDATES = 256
"""Actions of an infinite search space that stand for all of it."""


@dataclass(frozen=True)
class AtPresent:
    """An acquisition function of BoTorch, evaluated for the present time and context.

    What its constructor wants, and was not given, is what drift and context ask for: ``best_f`` is
    the largest posterior mean at the observed actions, and ``X_baseline`` these actions, both at
    the present; ``mc_points`` and ``candidate_set`` are actions at the present; a sampler is seeded
    by the loop's generator; and where it takes a ``posterior_transform``, outcomes are scaled to
    the order of one, for which BoTorch's tolerances are made.

    Args:
        make: A class, such as :class:`botorch.acquisition.qLogNoisyExpectedImprovement`, or a
            ``functools.partial`` of one with arguments of your own, in units of the outcomes
            divided by :func:`tvbo.acquisition.unit_of`.

    Raises:
        UnsupportedError: if it is a one-shot acquisition, such as the knowledge gradient.
        ValueError: if it is told to minimize, or has a ``posterior_transform`` and no ``best_f``.
    """

    make: Callable[..., AcquisitionFunction]

    def __post_init__(self) -> None:
        kind = _class_of(self.make)
        if kind is not None and issubclass(kind, OneShotAcquisitionFunction):
            raise UnsupportedError(
                "Expected an acquisition function of one action at a time. Got "
                f"{kind.__name__}, which is optimized together with its fantasies."
            )
        if not self._given.get("maximize", True):
            raise ValueError("Expected minimize=True of the recipe. Got maximize=False.")
        if "posterior_transform" in self._given and "best_f" in self._wanted:
            raise ValueError("Expected best_f beside posterior_transform. Got none.")

    def __call__(self, model: Model, ask_context: AskContext) -> AcquisitionFunction:
        """Return the acquisition function for this round."""
        generator, wanted = default_generator(ask_context.generator), self._wanted
        unit = unit_of(model, ask_context) if "posterior_transform" in wanted else 1.0
        filled: dict[str, Any] = {}
        if "best_f" in wanted:
            best = BestMean()(model, ask_context) / unit
            filled["best_f"] = torch.tensor(best, dtype=torch.float64)
        if "X_baseline" in wanted:
            filled["X_baseline"] = ask_context.rows(_observed(ask_context, generator))
        if "sampler" in wanted:
            sampler = SobolQMCNormalSampler(Size([NUM_SAMPLES]), seed=draw_seed(generator))
            filled["sampler"] = sampler
        for name in wanted & {"mc_points", "candidate_set"}:
            filled[name] = ask_context.rows(_actions(ask_context, generator))
        if "posterior_transform" in wanted and unit != 1:
            weight = torch.tensor([1 / unit], dtype=torch.float64)
            filled["posterior_transform"] = ScalarizedPosteriorTransform(weight)
        with seeded(generator):
            return self.make(model=model, **filled)

    @property
    def _given(self) -> dict[str, Any]:
        """Arguments of the caller's."""
        return self.make.keywords if isinstance(self.make, partial) else {}

    @property
    def _wanted(self) -> set[str]:
        """Names of the arguments that the caller did not give."""
        return signature(self.make).parameters.keys() - self._given.keys()


def as_acquisition(given: Acquisition | Callable[..., AcquisitionFunction]) -> Acquisition:
    """Return an acquisition of ours as it is, and one of BoTorch's :class:`AtPresent`."""
    return given if _class_of(given) is None else AtPresent(given)


def _class_of(make: object) -> type[AcquisitionFunction] | None:
    """Return the acquisition function class, bare or in a ``partial``; None for anything else."""
    kind = make.func if isinstance(make, partial) else make
    if isinstance(kind, type) and issubclass(kind, AcquisitionFunction):
        return kind
    return None


def _observed(ask_context: AskContext, generator: Generator) -> Tensor:
    """Return the observed actions, each once; a random one before the first observation."""
    observed = ask_context.observations.X[:, : ask_context.layout.num_actions]
    if len(observed) == 0 and ask_context.search_space is not None:
        return ask_context.search_space.sample(generator)
    distinct: Tensor = torch.unique(observed, dim=0)
    return distinct


def _actions(ask_context: AskContext, generator: Generator) -> Tensor:
    """Return actions that stand for all, those of a finite set or random ones of a box."""
    search_space = ask_context.search_space
    if search_space is None:
        raise ValueError("Expected an AskContext with a search_space. Got search_space=None.")
    if isinstance(search_space, FiniteSpace):
        return search_space.choices
    return torch.cat([search_space.sample(generator) for _ in range(NUM_CANDIDATES)])
