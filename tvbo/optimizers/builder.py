"""From the options of a recipe to an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict, TypeVar, Unpack

from botorch.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, BetaSchedule, LogBeta
from tvbo.acquisition.analytic import as_beta_schedule
from tvbo.acquisition.at_present import as_acquisition
from tvbo.acquisition.goals import Limits
from tvbo.fit.drift import Form
from tvbo.fit.model_fitter import ModelFitter
from tvbo.fit.refit import Refit, RefitEvery, RefitNever
from tvbo.kernels import Structure, memory_length
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.optimizers.units import UnitOptions
from tvbo.retention import Retention, SlidingWindow, StaleCutoff
from tvbo.spaces import (
    ContextList,
    ContextSpace,
    FiniteSpace,
    InputLayout,
    SearchSpace,
    Space,
    Table,
    action_context_rows,
    make_context_space,
    make_search_space,
)

JOINT_CHOICES = 5000
"""Pairs of action and context up to which a streaming posterior holds them all: its memory and a
round's work grow with their number."""

TOL = 1e-12
"""Weight at which an observation is discarded where no hyperparameter is ever learned."""


class OutcomeOptions(TypedDict, total=False):
    """Options of recipes with a Gaussian process: several outcomes.

    The optimizer is then a :class:`tvbo.optimizers.MultiOutcomeOptimizer`. Each outcome has a model
    of its own with the other options of the recipe; those in units of the outcome, such as a
    kernel's scale, count for all. With several objectives, the recipe's own acquisition is noisy
    expected hypervolume improvement, and there is no ``beta``.

    Args:
        objectives: Names of the objectives; or by name the worst value of interest, the reference
            point of the hypervolume, which is inferred where it is None. None: one objective, with
            the name ``"outcome"`` if there are constraints.
        constraints: Lower and upper limit of outcomes by name, such as
            ``{"latency": (None, 100.0)}``; None is no limit. They count for the functions,
            without the noise of an outcome.
        min_feasibility: Probability with which an action must satisfy all constraints; None is
            0.95.

    Raises:
        ValueError: if a name stands for two outcomes, a limit or threshold is no number, the
            probability is not between 0 and 1, or ``acquisition`` or ``beta`` are of one objective
            where there are several.
    """

    objectives: Sequence[str] | Mapping[str, float | None] | None
    constraints: Limits | None
    min_feasibility: float | None


class GPOptions(UnitOptions, OutcomeOptions, total=False):
    """Options of every recipe with a Gaussian process.

    An option that is left out, or None, has its default. The model is a
    :class:`tvbo.models.TimeVaryingGP`, built anew in each round where hyperparameters are learned
    in each round. Otherwise its posterior is updated: by a :class:`tvbo.models.StreamingGP` on a
    finite set, by a :class:`tvbo.models.IncrementalGP` on a box.

    Where hyperparameters are learned, the first actions fill the space, until there are two
    outcomes or pending trials for each number to be learned, or each action of a finite set was
    tried once. With all hyperparameters given, there is no such start.

    Args:
        bounds: Box of actions, a ``2 x d`` tensor or ``d`` pairs (lower, upper), or parameters by
            name (:meth:`tvbo.spaces.Parameters.of`). Give either this or ``choices``.
        choices: Finite set of actions, ``n x d``, a table with a row for each, or all combinations
            of integers and categories by name.
        covar_module: Kernel over actions; in a recipe whose model has contexts, over
            ``[action | context]``. At a refit, those of its parameters that require gradients are
            learned, on a copy. None learns BoTorch's default kernel, RBF, and beside
            ``temporal_kernel="auto"`` Matérn-5/2 if there are no contexts. With a list of temporal
            kernels, also a list of as many.
        temporal_kernel: In place of ``forgetting_rate``, which must be None then: a kernel over
            time, such as :class:`tvbo.kernels.TemporalMaternKernel`, or a list of them, whose
            products with ``covar_module`` are added, as in :class:`tvbo.models.TimeVaryingGP`. At a
            refit, those of its parameters that require gradients are learned, on a copy. Several
            with one ``covar_module`` have amplitudes to learn. ``"auto"``: each refit learns
            exponential decay and Matérn-5/2. Predictions are averaged over both and over their
            hyperparameters (:class:`tvbo.models.AveragedGP`) where kernel, mean and likelihood are
            left out and each round has a fit; elsewhere that of larger density counts. None
            learns ε. Both have priors in rounds (:mod:`tvbo.fit.drift`).
        noise_variance: Variance σ² of the noise, in squared units of the outcome, for outcomes told
            without a variance of their own. None learns it.
        mean_module: Prior mean, over rows ``[action | context | time]``. None is zero where nothing
            is learned, and a learned constant otherwise.
        likelihood: Likelihood whose noise is learned, as in :class:`tvbo.models.TimeVaryingGP`.
            None is BoTorch's default, with a wider prior where the drift is learned as well.
        acquisition: Acquisition that chooses the next action, such as
            :class:`tvbo.acquisition.LogEI`; or a class of BoTorch's, or a ``partial`` of one, whose
            incumbent and baseline are moved to the present (:class:`tvbo.acquisition.AtPresent`).
            None is the recipe's own: UCB, unless its documentation names another.
        beta: β of the recipe's own acquisition, a number or a schedule by the number of the trial,
            attached ones included: the standard deviation is multiplied by its root. None is
            ``0.8 log(4 t)``, unless the recipe's documentation names another.
        retention: Which observations are kept. None keeps all, except by the default of
            ``tv_gp_ucb``, and where no hyperparameter is ever learned: those whose weight under the
            drift is 1e-12 are discarded. Rules of a recipe's own are joined to it.
        pending: What stands in for the outcomes of pending trials. None is
            :class:`tvbo.optimizers.Hallucinate`, their posterior means, so that asking again before
            an outcome is told gives another action. Papers that know no delay have
            :class:`tvbo.optimizers.IgnorePending`; without pending trials both choose alike.
        refit: When hyperparameters are learned, such as ``RefitEvery(10)``. None: never if kernel,
            drift and noise are given, else in each round.
        initial: Number of actions that fill the space at first, attached trials included. None is
            what the first fit waits for.
        generator: Source of randomness. None is a fresh one with seed 0.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given; if both
            ``acquisition`` and ``beta`` are given; or if an option is out of range.
        TypeError: if a recipe is given an option that it does not have, or one that its rule
            defines.
    """

    bounds: Space | None
    choices: Table | None
    covar_module: Kernel | Sequence[Kernel] | None
    temporal_kernel: Form | Literal["auto"]
    noise_variance: float | None
    mean_module: Mean | None
    likelihood: Likelihood | None
    acquisition: Acquisition | Callable[..., AcquisitionFunction] | None
    beta: float | BetaSchedule | None
    retention: Retention | None
    pending: Pending | None
    refit: Refit | None
    initial: int | None
    generator: Generator | None


class ContextOptions(GPOptions, total=False):
    """Options of every recipe that is asked with a context: :class:`GPOptions`, and these two.

    Args:
        context_bounds: Range of the contexts: a ``2 x c`` tensor, or ``c`` pairs (lower, upper), or
            parameters by name. Give either this or ``contexts``.
        contexts: All contexts, ``m x c``, or a table or names as of ``choices``.

    Raises:
        ValueError: unless exactly one of ``context_bounds`` and ``contexts`` is given.
    """

    context_bounds: Space | None
    contexts: Table | None


class ContextualGPOptions(ContextOptions, total=False):
    """Options of a model over action and context: :class:`ContextOptions`, and the kernel's parts.

    The model is a :class:`tvbo.models.ContextualGP`. Where its posterior is updated, that is by a
    :class:`tvbo.models.StreamingGP` over all pairs of a finite action and a listed context, up to
    5,000 pairs, and by a :class:`tvbo.models.IncrementalGP` otherwise.

    Args:
        structure: ``"product"``, ``"additive"`` or ``"both"``, as in
            :class:`tvbo.kernels.ContextActionKernel`; ``"both"`` has scales to learn. None is
            ``"product"``.
        action_kernel: Kernel over actions, which it sees as columns ``0, ..., d - 1``. At a refit,
            those of its parameters that require gradients are learned, on a copy. None learns
            BoTorch's default kernel. Where either kernel is None, outcomes are standardized, and a
            scale in the other one is in units of the standardized outcome.
        context_kernel: Kernel over contexts, which it sees as columns ``0, ..., c - 1``; learned
            as ``action_kernel`` is.

    Raises:
        ValueError: if ``covar_module`` is given beside one of these parts.
    """

    structure: Structure | None
    action_kernel: Kernel | None
    context_kernel: Kernel | None


OptimizerT = TypeVar("OptimizerT", bound=GPOptimizer)


def ucb(beta: float | BetaSchedule | None) -> UCB:
    """Return UCB with a number or a schedule for β; None is ``0.8 log(4 t)``."""
    return UCB(as_beta_schedule(LogBeta() if beta is None else beta))


def action_fitter(
    search_space: SearchSpace, forgetting_rate: float | None, options: ContextualGPOptions
) -> ModelFitter:
    """Return what fits the hyperparameters of a model over actions and time, without contexts."""
    return ModelFitter(
        InputLayout(search_space.dim),
        search_space.bounds,
        covar_module=options.get("covar_module"),
        forgetting_rate=forgetting_rate,
        temporal_kernel=options.get("temporal_kernel"),
        noise_variance=options.get("noise_variance"),
        mean_module=options.get("mean_module"),
        likelihood=options.get("likelihood"),
        refit=options.get("refit"),
    )


def posterior_state(
    fitter: ModelFitter, search_space: SearchSpace, contexts: ContextSpace | None
) -> PosteriorState:
    """Return the form in which the posterior is kept from round to round.

    Where hyperparameters are learned in each round, the model is built anew each time. Otherwise it
    is updated, as a stream on moderately many pairs of action and context.
    """
    if fitter.refit == RefitEvery(1):
        return DenseState(fitter)
    pairs = _pairs(search_space, contexts if fitter.layout.num_contexts else None)
    if pairs is None:
        return IncrementalState(fitter, tol=TOL)
    return StreamingState(fitter, pairs, tol=TOL)


def build(
    optimizer: type[OptimizerT],
    *,
    forgetting_rate: float | None,
    rule: Callable[[float | BetaSchedule | None], Acquisition] = ucb,
    admission: Retention | None = None,
    context_space: ContextSpace | None = None,
    make_fitter: Callable[
        [SearchSpace, float | None, ContextualGPOptions], ModelFitter
    ] = action_fitter,
    make_state: Callable[
        [ModelFitter, SearchSpace, ContextSpace | None], PosteriorState
    ] = posterior_state,
    **options: Unpack[ContextualGPOptions],
) -> OptimizerT:
    """Build an optimizer with a Gaussian process from the parts of a recipe and its options.

    Args:
        optimizer: Class of the optimizer.
        forgetting_rate: Drift ε per unit of time; None learns it.
        rule: The recipe's own acquisition, from β; None is its default β.
        admission: The recipe's own rule for which outcomes are admitted; it follows ``retention``.
        context_space: Contexts to expect, from :func:`context_space_of`. None: there are none.
        make_fitter: Makes what fits the hyperparameters, from the search space, ε and the options.
        make_state: Makes the form in which the posterior is kept, from the fitter and both spaces.
        options: Options of the recipe.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given; if both
            ``acquisition`` and ``beta`` are given; or if an option is out of range.
    """
    given = options.get("acquisition")
    acquisition = rule(options.get("beta")) if given is None else as_acquisition(given)
    if given is not None and options.get("beta") is not None:
        raise ValueError(
            "Expected either acquisition or beta, which is that of the recipe's own. Got both."
        )
    search_space = make_search_space(options.get("bounds"), options.get("choices"))
    fitter = make_fitter(search_space, forgetting_rate, options)
    state = make_state(fitter, search_space, context_space)
    retention = options.get("retention")
    if retention is None and isinstance(fitter.refit, RefitNever):
        retention = _stale_cutoff(fitter)
    if admission is not None:
        retention = admission if retention is None else retention & admission
    initial = options.get("initial")
    return optimizer(
        search_space,
        state,
        acquisition,
        retention=retention,
        pending=options.get("pending"),
        layout=fitter.layout,
        generator=options.get("generator"),
        contexts=context_space,
        initial=fitter.num_initial() if initial is None else initial,
    )


def context_space_of(options: ContextOptions) -> ContextSpace:
    """Return the contexts to expect.

    Raises:
        ValueError: unless exactly one of ``context_bounds`` and ``contexts`` is given.
    """
    return make_context_space(options.get("context_bounds"), options.get("contexts"))


def _stale_cutoff(fitter: ModelFitter) -> Retention | None:
    """Return the rule that discards observations without weight; None where all keep theirs."""
    kernels, rate = fitter.drift.temporal_kernels, fitter.forgetting_rate
    if kernels:
        length = memory_length(kernels, TOL)
        return SlidingWindow(length) if math.isfinite(length) else None
    return StaleCutoff(rate, TOL) if rate else None


def _pairs(search_space: SearchSpace, contexts: ContextSpace | None) -> Tensor | None:
    """Return the rows ``[action | context]`` of a set of moderate size; None for any other."""
    if not isinstance(search_space, FiniteSpace):
        return None
    if contexts is None:
        return search_space.choices
    if not isinstance(contexts, ContextList):
        return None
    if len(search_space.choices) * len(contexts.contexts) > JOINT_CHOICES:
        return None
    return action_context_rows(search_space.choices, contexts.contexts)
