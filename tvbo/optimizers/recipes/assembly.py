"""From the parts that a recipe chose to an optimizer: which form the posterior takes."""

from __future__ import annotations

from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, BetaSchedule
from tvbo.acquisition.beta import as_beta_schedule
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_surrogate import IncrementalSurrogate
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.refit import RefitEvery, RefitNever
from tvbo.optimizers.streaming_surrogate import StreamingSurrogate
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.optimizers.surrogate_protocol import Surrogate
from tvbo.retention import Retention, StaleCutoff
from tvbo.search_space import (
    ContextList,
    ContextSpace,
    FiniteSpace,
    SearchSpace,
    action_context_rows,
)

JOINT_CHOICES = 5000
"""Pairs of action and context up to which a streaming posterior holds them all. Its memory and a
round's work grow with their number; the incremental one grows with the observations instead."""

TOL = 1e-12
"""Weight at which an observation is let go where nothing is learned from it any more."""


def gp_optimizer(
    search_space: SearchSpace,
    dense: GPSurrogate,
    acquisition: Acquisition,
    retention: Retention | None,
    generator: Generator | None,
    contexts: ContextSpace | None = None,
    pending: Pending | None = None,
) -> GPOptimizer:
    """The loop of a Gaussian process model.

    Where hyperparameters are learned in each round, the model is built anew each time. Otherwise
    it takes in what is new: a streaming posterior where the pairs of action and context are a
    finite set of moderate size, an incremental one on a box, or for contexts between bounds.

    Args:
        search_space: The set of actions.
        dense: Knows the hyperparameters, or learns them.
        acquisition: Builds the acquisition function.
        retention: Which observations stay; None: all, but where nothing is ever learned, those
            that the drift has made worthless are let go.
        generator: Source of randomness.
        contexts: The contexts to expect, in the layout of ``dense`` or not.
        pending: What open trials contribute; None: they are hallucinated.
    """
    surrogate: Surrogate = dense
    if dense.refit != RefitEvery(1):
        pairs = _pairs(search_space, contexts if dense.layout.num_contexts else None)
        if pairs is None:
            surrogate = IncrementalSurrogate(dense, tol=TOL)
        else:
            surrogate = StreamingSurrogate(dense, pairs, tol=TOL)
        search_space = all_at_once(search_space)
    return GPOptimizer(
        search_space,
        surrogate,
        acquisition=acquisition,
        retention=stale_cutoff(dense) if retention is None else retention,
        pending=pending,
        layout=dense.layout,
        generator=generator,
        contexts=contexts,
        initial=dense.num_initial(),
    )


def all_at_once(search_space: SearchSpace) -> SearchSpace:
    """Return the search space for models that evaluate all candidates of a finite set together."""
    if isinstance(search_space, FiniteSpace):
        return FiniteSpace(search_space.choices, chunk=len(search_space.choices))
    return search_space


def acquisition_or_ucb(
    acquisition: Acquisition | None, beta: float | BetaSchedule | None, default: Acquisition
) -> Acquisition:
    """The acquisition given, or UCB with the β given, or else the default.

    Raises:
        ValueError: if both are given.
    """
    if acquisition is not None and beta is not None:
        raise ValueError("Expected either acquisition or beta, which is that of UCB. Got both.")
    if acquisition is not None:
        return acquisition
    return default if beta is None else UCB(as_beta_schedule(beta))


def stale_cutoff(dense: GPSurrogate) -> StaleCutoff | None:
    """Lets go of what the drift has made worthless; None where something may be learned from it."""
    if not dense.forgetting_rate or not isinstance(dense.refit, RefitNever):
        return None
    return StaleCutoff(dense.forgetting_rate, TOL)


def _pairs(search_space: SearchSpace, contexts: ContextSpace | None) -> Tensor | None:
    """Rows ``[action | context]`` of a finite set; None where there is none of moderate size."""
    if not isinstance(search_space, FiniteSpace):
        return None
    if contexts is None:
        return search_space.choices
    if not isinstance(contexts, ContextList):
        return None
    if len(search_space.choices) * len(contexts.contexts) > JOINT_CHOICES:
        return None
    return action_context_rows(search_space.choices, contexts.contexts)
