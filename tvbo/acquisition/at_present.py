"""BoTorch's acquisition functions, with what drift asks of them done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from botorch.acquisition import (
    AcquisitionFunction,
    MCAcquisitionFunction,
    OneShotAcquisitionFunction,
)
from botorch.acquisition.multi_objective.base import MultiObjectiveMCAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.sampling import ListSampler, SobolQMCNormalSampler
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Generator, Size, Tensor

from tvbo.acquisition.improvement import BestMean
from tvbo.acquisition.ucb import Acquisition
from tvbo.models.scale import marginals
from tvbo.randomness import default_generator, draw_seed, seeded
from tvbo.spaces import AskContext, FiniteSpace

NUM_SAMPLES = 128
"""Draws of a Monte-Carlo acquisition."""

NUM_CANDIDATES = 256
"""Actions of an infinite search space that stand for all of it."""


BASELINE = 50
"""Observed actions that a new one is compared with."""

REDUNDANT = 1e-4
"""Share of the largest variance below which what is left of an action's, given the values of better
ones, does not count."""


@dataclass(frozen=True)
class AtPresent:
    """An acquisition function of BoTorch, evaluated for the present time and context.

    What its constructor wants, and was not given, is what drift and context ask for: ``best_f`` is
    the largest posterior mean at the observed actions, and ``X_baseline`` these actions, both at
    the present; ``mc_points`` and ``candidate_set`` are actions at the present; and a sampler is
    seeded by the loop's generator.

    Args:
        make: A class, such as :class:`botorch.acquisition.qLogNoisyExpectedImprovement`, or a
            ``functools.partial`` of one with arguments of your own, in standardized outcomes.

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
        return self.of_objectives([model], (), ask_context)

    def of_objectives(
        self, models: Sequence[Model], thresholds: Sequence[float | None], ask_context: AskContext
    ) -> AcquisitionFunction:
        """Return the acquisition function for this round, of one objective or several.

        Of several, what is filled in as well is ``ref_point``: the thresholds or, where there are
        none, what BoTorch infers of the posterior means of the observed actions at the present.

        Args:
            models: The model of each objective, standardized.
            thresholds: The worst value of interest of each, standardized; None where it is
                inferred. None at all are given of one objective.
            ask_context: The present.

        Raises:
            UnsupportedError: if the class is not made for several objectives.
        """
        if thresholds and "ref_point" not in signature(self.make).parameters:
            raise UnsupportedError(
                "Expected an acquisition function of several objectives, such as "
                f"qLogNoisyExpectedHypervolumeImprovement. Got {self.make}."
            )
        generator, wanted = default_generator(ask_context.generator), self._wanted
        filled: dict[str, Any] = {}
        if "best_f" in wanted:
            filled["best_f"] = BestMean()(models[0], ask_context)
        if "X_baseline" in wanted or thresholds:
            # Each action once; a random one before the first observation.
            observed = ask_context.observations.X[:, : ask_context.layout.num_actions].unique(dim=0)
            if len(observed) == 0 and ask_context.search_space is not None:
                observed = ask_context.search_space.sample(generator)
            rows = ask_context.rows(observed)
            with torch.no_grad():
                means = means_of(models, rows.unsqueeze(-2))
            filled["X_baseline"] = _baseline(models, means, rows)
        if thresholds:
            inferred = infer_reference_point(means[is_non_dominated(means)])
            for place, threshold in enumerate(thresholds):
                if threshold is not None:
                    inferred[place] = threshold
            filled["ref_point"] = inferred
        if "sampler" in wanted:
            seeds = [draw_seed(generator) for _ in models]
            samplers = [SobolQMCNormalSampler(Size([NUM_SAMPLES]), seed=seed) for seed in seeds]
            filled["sampler"] = samplers[0] if len(models) == 1 else ListSampler(*samplers)
        for name in wanted & {"mc_points", "candidate_set"}:
            filled[name] = ask_context.rows(actions_of(ask_context, generator))
        model = models[0] if len(models) == 1 else ModelList(*models)
        with seeded(generator):
            return self.make(
                model=model, **{name: value for name, value in filled.items() if name in wanted}
            )

    @property
    def takes_batches(self) -> bool:
        """Whether it is a Monte Carlo acquisition function, of batches of actions."""
        made = _class_of(self.make)
        kinds = MCAcquisitionFunction, MultiObjectiveMCAcquisitionFunction
        return made is not None and issubclass(made, kinds)

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


def means_of(models: Sequence[Model], rows: Tensor) -> Tensor:
    """Return posterior means, ``b x k``, at rows ``b x 1 x d``."""
    return torch.cat([marginals(model, rows)[0] for model in models], dim=-1)


def _baseline(models: Sequence[Model], means: Tensor, rows: Tensor) -> Tensor:
    """Return the best of the observed actions, without those whose values these tell.

    Of actions near one another the joint covariance is singular to rounding, and each counts in the
    time of every evaluation.

    Args:
        models: The models of the objectives.
        means: Their posterior means, ``n x k``.
        rows: Observed actions at the present, ``n x d``.

    Returns:
        At most :data:`BASELINE` rows; those that no other dominates come first.
    """
    covar = means.new_zeros(len(rows), len(rows))
    with torch.no_grad():
        for model in models:
            posterior: Any = model.posterior(rows)
            found = posterior.distribution.covariance_matrix
            covar += found / found.diagonal().max()
    # Cholesky's factorization in the order of merit, of the rows that are not redundant.
    order = means.sum(dim=-1).argsort(descending=True, stable=True)
    order = order[is_non_dominated(means)[order].double().argsort(descending=True, stable=True)]
    left = covar.diagonal().clone()
    kept: list[int] = []
    columns: list[Tensor] = []
    for place in order.tolist():
        if left[place] > REDUNDANT and len(kept) < BASELINE:
            column = covar[:, place] - sum((c * c[place] for c in columns), covar.new_zeros(()))
            columns.append(column / left[place].sqrt())
            left = left - columns[-1].square()
            kept.append(place)
    return rows[kept] if kept else rows[order[:1]]


def actions_of(
    ask_context: AskContext, generator: Generator, count: int = NUM_CANDIDATES
) -> Tensor:
    """Return actions that stand for all, those of a finite set or random ones of a box."""
    search_space = ask_context.search_space
    if search_space is None:
        raise ValueError("Expected an AskContext with a search_space. Got search_space=None.")
    if isinstance(search_space, FiniteSpace):
        return search_space.choices
    return torch.cat([search_space.sample(generator) for _ in range(count)])
