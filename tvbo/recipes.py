"""Recipes: the algorithms of the papers, each a preset of the options that all share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import signature
from typing import Any, Literal, TypedDict, Unpack

import torch
from botorch.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel, LinearKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, Acquisition, Goals, LogBeta, ThompsonSampling
from tvbo.acquisition.at_present import as_acquisition
from tvbo.acquisition.goals import Limits
from tvbo.acquisition.ucb import BetaSchedule, as_beta_schedule
from tvbo.fit.drift import Form
from tvbo.fit.model_fitter import ModelFitter, Refit, RefitEvery, RefitNever
from tvbo.kernels import ContextActionKernel, IdentityKernel
from tvbo.kernels.context_action import Structure
from tvbo.kernels.temporal import memory_length
from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.bpe.confidence import FixedWidth, WidthRule
from tvbo.optimizers.bpe.delays import DelayBound
from tvbo.optimizers.event import Settings
from tvbo.optimizers.gp import Failures, GPOptimizer
from tvbo.optimizers.outcome_model import NEGLIGIBLE_WEIGHT, OutcomeModel
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.random import RandomSearch
from tvbo.retention import EntropyThreshold, Reset, Retention, SizeLimit, SlidingWindow, StaleCutoff
from tvbo.retention.entropy import Mode
from tvbo.spaces import FiniteSpace, InputLayout, MixedSpace
from tvbo.spaces.labels import TimeScale
from tvbo.spaces.parameters import Category
from tvbo.spaces.search_space import Outside, SearchSpace, Space, make_search_space
from tvbo.spaces.step_limit import Step, StepLimit
from tvbo.values import Table, as_number, did_you_mean

__all__ = [
    "bpe_delay",
    "cgp_ucb",
    "compressed_gp",
    "gp_ts",
    "gp_ucb",
    "linear_ucb",
    "r_gp_ucb",
    "random_search",
    "tv_cgp_ucb",
    "tv_gp_ucb",
]

DEFAULT_BETA = 2.5
"""β of upper bounds on a box where the kernel is learned, from measurements."""

DEFAULT_BETA_OF_DRAWS = 0.5
"""β of :func:`gp_ts` there, from measurements."""

DEFAULT_LIMIT, DEFAULT_STATIC_LIMIT = 100, 200
"""Number of observations kept there, the most informative ones about the present, and where nothing
drifts. Where a loop goes on for hundreds of rounds and the function drifts, it did better so than
with twice as many, at half the time."""

MAX_PAIRS = 5000
"""Pairs of action and context up to which a streaming posterior holds them all: its memory and a
round's work grow with their number."""

OPTIONS_OF_FITS = (
    *("covar_module", "temporal_kernel", "noise_variance", "mean_module", "likelihood", "refit"),
    *("structure", "action_kernel", "context_kernel"),
)
"""Options with which hyperparameters are learned."""


class LoopOptions(TypedDict, total=False):
    """Options of every recipe.

    An option that is left out, or None, has its default.

    Args:
        bounds: Box of actions, a ``2 x d`` tensor or ``d`` pairs (lower, upper), or parameters by
            name (:meth:`tvbo.spaces.Parameters.of`). Give either this or ``choices``.
        choices: Finite set of actions, ``n x d``, a table with a row for each, or all combinations
            of integers and categories by name.
        generator: Where the seed of every random choice is drawn from, or the seed itself. None is
            a fresh one with seed 0.
        minimize: Whether smaller outcomes are better, or of several objectives the names of those
            of which smaller values are; None is False. Outcomes come and are recommended as they
            are; models, acquisitions and priors are of their negatives.
        time_unit: Unit of time for timestamps, as pandas writes it, such as ``"1h"``: times are
            then ``pandas.Timestamp``, ``datetime``, ``numpy.datetime64`` or text in ISO 8601, and
            ``trial.t`` is in units since the beginning of 1970. None: times are numbers.
        time_zone: Time zone of timestamps, such as ``"UTC"``; those of other zones are converted,
            those without one refused. None: timestamps have no time zone.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given; or if there is no
            such unit of time or zone, or a zone comes without a unit.
        TypeError: if a recipe is given an option that it does not have.
    """

    bounds: Space | None
    choices: Table | None
    generator: Generator | int | None
    minimize: bool | Collection[str] | None
    time_unit: str | None
    time_zone: str | None


class GPOptions(LoopOptions, total=False):
    """Options of every recipe with a Gaussian process: :class:`LoopOptions`, and these.

    The model is a
    :class:`tvbo.models.TimeVaryingGP`, built again in each round where hyperparameters are learned
    in each round. Otherwise its posterior is updated: by a :class:`tvbo.models.StreamingGP` on a
    finite set, by an :class:`tvbo.models.EnsembleGP` on a box.

    Where hyperparameters are learned, the first actions fill the space, until there are two
    outcomes or pending trials for each number to be learned, or each action of a finite set was
    tried once. With all hyperparameters given, there is no such start.

    Of several outcomes each has a model of its own with the options of the recipe; those in units
    of the outcome, such as a kernel's scale, are the same for all. With several objectives, the
    recipe's own acquisition is noisy expected hypervolume improvement, and there is no ``beta``.

    Args:
        covar_module: Kernel over actions; in a recipe whose model has contexts, over
            ``[action | context]``. At a refit, those of its parameters that require gradients are
            learned, on a copy. None learns BoTorch's default kernel, RBF, and beside
            ``temporal_kernel="auto"`` Matérn-5/2, in which the columns of a category have one
            lengthscale. With a list of temporal kernels, also a list of as many.
        temporal_kernel: In place of ``forgetting_rate``, which must be None then: a kernel over
            time, such as :class:`tvbo.kernels.TemporalMaternKernel`, or a list of them, whose
            products with ``covar_module`` are added, as in :class:`tvbo.models.TimeVaryingGP`. At a
            refit, those of its parameters that require gradients are learned, on a copy. Several
            with one ``covar_module`` have amplitudes to learn. ``"auto"``: each refit learns
            exponential decay and Matérn-5/2, or has the ``forgetting_rate`` given. Predictions are
            averaged over both and over their hyperparameters (:class:`tvbo.models.EnsembleGP`)
            where kernel, mean and likelihood are left out; elsewhere that of larger density is
            taken. None learns ε. Both have priors in rounds (:mod:`tvbo.fit.drift`).
        noise_variance: Variance σ² of the noise, in squared units of the outcome, for outcomes
            observed without a variance of their own. None learns it.
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
        retention: Which observations are kept. None keeps all, except on a box with no
            kernel given, and where no hyperparameter is ever learned: those whose weight under the
            drift is 1e-12 are discarded. Rules of a recipe's own are joined to it.
        pending: What stands in for the outcomes of pending trials. None is
            :class:`tvbo.optimizers.Hallucinate`, their posterior means, so that asking again before
            an outcome is observed gives another action. Papers that know no delay have
            :class:`tvbo.optimizers.IgnorePending`; without pending trials both choose alike.
        refit: When hyperparameters are learned, such as ``RefitEvery(10)``. None: never if kernel,
            drift and noise are given, else in each round.
        initial: Number of actions that fill the space at first, attached trials included. None is
            what the first fit waits for.
        objectives: Names of the objectives; or by name the worst value of interest, the reference
            point of the hypervolume, which is inferred where it is None. None: one objective, with
            the name ``"outcome"`` if there are constraints.
        constraints: Lower and upper limit of outcomes by name, such as
            ``{"latency": (None, 100.0)}``; None is no limit. They hold for the functions, without
            the noise of an outcome.
        min_feasibility: Probability with which an action must satisfy all constraints; None is
            0.95.
        failures: ``"learn"``, which None is: trials that fail or expire tell where others probably
            would, and what probably fails is asked for less. ``"ignore"``: they tell nothing.
            ``"nan"``: as ``"learn"``, and a trial that is told NaN fails.
        duration: How long an evaluation takes: in units of time, or with ``time_unit`` also as
            text such as ``"10min"``. Actions are chosen for its end, when outcomes are measured, as
            ``ask(duration=...)`` describes. None is 0.
        max_step: Longest step of a parameter from the newest trial, asked or attached, to the next:
            one number for all, one for each, or by name of those that have a limit; in units of the
            parameter, also on a logarithmic scale. It holds for what is asked, space-filling
            actions included, not for what is recommended. None is no limit.
        max_rate: Longest step in a unit of time, likewise. With both, either holds.

    Raises:
        ValueError: if both ``acquisition`` and ``beta`` are given; if a name stands for two
            outcomes, or ``acquisition`` or ``beta`` are of one objective where there are several;
            or if an option is out of range.
    """

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
    objectives: Sequence[str] | Mapping[str, float | None] | None
    constraints: Limits | None
    min_feasibility: float | None
    failures: Failures | None
    duration: float | str | None
    max_step: Step | None
    max_rate: Step | None


class ContextualGPOptions(GPOptions, total=False):
    """Options of a model over action and context: :class:`GPOptions`, and these.

    The model is a :class:`tvbo.models.ContextualGP`. Where its posterior is updated, that is by a
    :class:`tvbo.models.StreamingGP` over all pairs of a finite action and a listed context, up to
    5,000 pairs, and by an :class:`tvbo.models.EnsembleGP` otherwise.

    Args:
        context_bounds: Range of the contexts: a ``2 x c`` tensor, or ``c`` pairs (lower, upper), or
            parameters by name. Give either this or ``contexts``.
        contexts: All contexts, ``m x c``, or a table or names as of ``choices``.
        contexts_outside: What to do with a context outside of ``context_bounds``, which are then
            numbers without names: ``"refuse"`` it, ``"clip"`` it to the bounds, or ``"extend"``:
            take it as it is, since bounds only scale the model. None is ``"refuse"``.
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
        ValueError: unless exactly one of ``context_bounds`` and ``contexts`` is given; or if
            ``covar_module`` is given beside one of its parts.
    """

    context_bounds: Space | None
    contexts: Table | None
    contexts_outside: Outside | None
    structure: Structure | None
    action_kernel: Kernel | None
    context_kernel: Kernel | None


def tv_gp_ucb(*, forgetting_rate: float | None = None, **options: Unpack[GPOptions]) -> GPOptimizer:
    """Build TV-GP-UCB: old data are forgotten smoothly (Bogunovic et al., 2016, Algorithm 2).

    On a box, with no kernel given, it is what did best where all is learned, not the paper's
    algorithm, and so are the other recipes there that have no ``covar_module`` of their own:
    ``temporal_kernel="auto"``, with a Matérn-5/2 kernel over actions and contexts; β = 2.5 with a
    correction for the edge of the box (``EdgeCorrectedUCB``); and ``retention=SizeLimit(100)``, or
    200 where nothing drifts, so that a round costs the same at any age of the loop. Whatever of
    these is given takes their place. :class:`tvbo.retention.KeepAll` keeps all observations, and
    ``temporal_kernel=TemporalDecayKernel()`` learns ε by maximum likelihood.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP, :class:`GPOptions`.
    """
    given = {**options, "forgetting_rate": forgetting_rate}
    return _build("tv_gp_ucb", given, forgetting_rate, _upper_bound(options), options)


def gp_ucb(**options: Unpack[GPOptions]) -> GPOptimizer:
    """Build GP-UCB (Srinivas et al., 2010): TV-GP-UCB that never forgets, ε = 0.

    Args:
        **options: Options of every recipe with a GP, :class:`GPOptions`.
    """
    return _build("gp_ucb", options, 0.0, _upper_bound(options), options)


def r_gp_ucb(*, every: float, start: float = 1.0, **options: Unpack[GPOptions]) -> GPOptimizer:
    """Build R-GP-UCB: GP-UCB that resets (Bogunovic et al., 2016, Algorithm 1).

    A ``retention`` of yours sees what a reset left.

    Args:
        every: Block length N, in units of time; see
            :func:`tvbo.logs.block_length.block_length`.
        start: Time at which the first block begins.
        **options: Options of every recipe with a GP, :class:`GPOptions`.
    """
    # The reset comes first: a limit on the size then counts the observations of the block alone.
    reset, given = Reset(every=every, start=start), options.get("retention")
    if given is None and _learns_on_box(options):
        given = SizeLimit(DEFAULT_STATIC_LIMIT)
    joined: GPOptions = {**options, "retention": reset if given is None else reset & given}
    all_given = {**options, "every": every, "start": start}
    return _build("r_gp_ucb", all_given, 0.0, _upper_bound(options), joined)


def gp_ts(*, forgetting_rate: float | None = 0.0, **options: Unpack[GPOptions]) -> GPOptimizer:
    r"""Build GP-TS: the best action of a function drawn from the posterior.

    The algorithm of Chowdhury and Gopalan (2017), whose acquisition is
    :class:`tvbo.acquisition.ThompsonSampling` with β = 1. Pending trials are hallucinated, as in
    the other recipes: the draw is from the posterior whose variance is as if all outcomes had come.
    With ``pending=IgnorePending()`` it is from the posterior of the outcomes that have come, as in
    the paper; draws differ in that case, too, but may name the same action.

    On a box, with no kernel given, model and retention are those of :func:`tv_gp_ucb` there, the
    draw is corrected for the edge of the box, too, and β is 0.5.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP, :class:`GPOptions`.
    """
    is_default, beta = _learns_on_box(options), options.get("beta")
    default = DEFAULT_BETA_OF_DRAWS if is_default else 1.0
    own = ThompsonSampling(default if beta is None else beta, edge_correction=is_default)
    given = {**options, "forgetting_rate": forgetting_rate}
    return _build("gp_ts", given, forgetting_rate, own, options)


def compressed_gp(
    *,
    budget: float = 0.01,
    mode: Mode = "skip",
    floor: int = 0,
    forgetting_rate: float | None = 0.0,
    **options: Unpack[GPOptions],
) -> GPOptimizer:
    r"""Build a compressed GP bandit: CUB, CEI and their like (Bedi et al., Algorithm 1).

    A candidate whose outcome is expected to bring no more than ``budget`` nats is not evaluated, or
    evaluated and not kept. That is the rule of :class:`tvbo.retention.EntropyThreshold`, which
    works as ``retention`` of the other recipes as well; here it follows the ``retention`` given.

    Args:
        budget: Budget ε in nats. The paper's experiments have ``1e-4``, which lets one action be
            sampled 5,000 times; its theorems :math:`\tfrac{1}{2} \log(1 + T^{-\alpha})`, see
            :func:`tvbo.retention.entropy.compression_budget`.
        mode: ``"skip"``, not evaluated, or ``"discard"``, evaluated and not kept.
        floor: While fewer observations than this are held, every outcome is admitted. Where
            hyperparameters are learned, all are admitted before the first fit in any case.
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP, :class:`GPOptions`.

    Raises:
        ValueError: if ``budget``, ``mode`` or ``floor`` is refused by
            :class:`tvbo.retention.EntropyThreshold`.
    """
    threshold = EntropyThreshold(budget, mode, floor)
    given = {**options, "forgetting_rate": forgetting_rate}
    given |= {"budget": budget, "mode": mode, "floor": floor}
    own = _upper_bound(options)
    return _build("compressed_gp", given, forgetting_rate, own, options, admission=threshold)


def tv_cgp_ucb(
    *, forgetting_rate: float | None = None, **options: Unpack[ContextualGPOptions]
) -> GPOptimizer:
    """Build CGP-UCB whose data are forgotten smoothly: context and drift in one model.

    The rule (2) of Krause, Ong (2011), on the posterior (7)-(8) of Bogunovic et al. (2016) with a
    :class:`tvbo.kernels.ContextActionKernel` for their ``k``. Neither paper has the two together.
    The schedules for ``beta`` of Theorem 1 are ``FiniteBeta``,
    ``CompactBeta`` and ``RKHSBeta``.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of a model over action and context, :class:`ContextualGPOptions`.

    Example:
        >>> optimizer = tv_cgp_ucb(bounds=bounds, context_bounds=torch.tensor([[1.0], [4.0]]))
        >>> trial = optimizer.ask(t=3.5, context=torch.tensor([2.2]))
        >>> optimizer.tell(trial, 0.7)
        >>> optimizer.recommend(context=torch.tensor([2.2]))
    """
    given, own = {**options, "forgetting_rate": forgetting_rate}, _upper_bound(options)
    return _build("tv_cgp_ucb", given, forgetting_rate, own, options, has_contexts=True)


def cgp_ucb(**options: Unpack[ContextualGPOptions]) -> GPOptimizer:
    """Build CGP-UCB (Krause, Ong, 2011, rule (2)): one model of action and context, without drift.

    Args:
        **options: Options of a model over action and context, :class:`ContextualGPOptions`.
    """
    return _build("cgp_ucb", options, 0.0, _upper_bound(options), options, has_contexts=True)


def linear_ucb(
    *,
    shared_kernel: Kernel | None = None,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    **options: Unpack[GPOptions],
) -> GPOptimizer:
    r"""Build LinUCB as a special case of CGP-UCB (Krause, Ong, 2011, Section 5.3).

    The kernel is the identity over arms, which are ``choices`` in any numbers that tell them apart,
    times a linear kernel over features, which are the context:

    .. math:: k\big((a, z), (a', z')\big) =
        \big(\mathbb{1}[a = a'] + k_\text{shared}(a, a')\big)\, z^\top z'.

    Without a shared kernel it is the disjoint LinUCB of Li et al. (2010), Algorithm 1, with
    ridge parameter ``noise_variance`` (theirs is 1) and :math:`\alpha = \sqrt{\beta\,\sigma^2}`.
    Here ``noise_variance`` and ``beta`` are 1 where they are left out. The features have no
    intercept but one among them.

    Where each arm has features of its own in each context, an action is a row of these: give their
    ranges as ``bounds`` and no contexts, and the arms of the moment with each ask, as
    ``ask(choices=features)``. Without names, all arms share one linear model (Chu et al., 2011,
    Algorithm 1). With names, :math:`a` is the values of the categories, such as
    ``bounds={"arm": ["x", "y"], "price": (0.0, 5.0)}``, and :math:`z` the numbers.

    Args:
        shared_kernel: Kernel over arms, of what they share: the hybrid model (Li et al.,
            Algorithm 2, in which the shared features are products of arm features and context, has
            a ``LinearKernel`` of variance 1, where a fresh one has 0.69, on arm features in
            ``choices``). None: arms share nothing.
        context_bounds: Range of the contexts, beside ``choices``. Give either this or ``contexts``.
        contexts: All contexts, ``m x c``, beside ``choices``.
        **options: Options of every recipe with a GP, :class:`GPOptions`, without ``covar_module``.

    Raises:
        TypeError: if ``covar_module`` is given.
        ValueError: if contexts are given beside ``bounds``, or a shared kernel beside ``bounds``
            without categories.
    """
    _check_names("linear_ucb", options, GPOptions)
    if options.get("covar_module") is not None:
        raise TypeError(
            "Expected no covar_module: the kernel is linear in the features, and shared_kernel is "
            f"what arms share. Got {options['covar_module']!r}."
        )
    linear = LinearKernel().to(torch.float64)
    linear.variance = torch.ones(1, dtype=torch.float64)
    arms: Kernel = IdentityKernel() if shared_kernel is None else IdentityKernel() + shared_kernel
    noise_variance, beta = options.get("noise_variance"), options.get("beta")
    own = UCB(as_beta_schedule(1.0 if beta is None else beta))
    all_given = {**options, "shared_kernel": shared_kernel}
    all_given |= {"context_bounds": context_bounds, "contexts": contexts}
    given: ContextualGPOptions = {
        **options,
        "noise_variance": 1.0 if noise_variance is None else noise_variance,
    }
    bounds = options.get("bounds")
    if bounds is None:
        given["context_bounds"], given["contexts"] = context_bounds, contexts
        given["action_kernel"], given["context_kernel"] = arms, linear
        return _build("linear_ucb", all_given, 0.0, own, given, has_contexts=True)
    if contexts is not None or context_bounds is not None:
        raise ValueError(
            "Expected either bounds of the features of each arm, or choices and contexts. Got both."
        )
    parameters = make_search_space(bounds, None).parameters
    parts = () if parameters is None else parameters.varying
    is_category = [isinstance(part, Category) for part in parts for _ in range(part.width)]
    if any(is_category):
        given["covar_module"] = ContextActionKernel(
            arms,
            linear,
            action_features=[i for i, is_arm in enumerate(is_category) if is_arm],
            context_features=[i for i, is_arm in enumerate(is_category) if not is_arm],
        )
    elif shared_kernel is not None:
        raise ValueError("Expected categories among the bounds for shared_kernel. Got none.")
    else:
        given["covar_module"] = linear
    return _build("linear_ucb", all_given, 0.0, own, given)


def bpe_delay(
    *,
    covar_module: Kernel,
    noise_variance: float,
    horizon: int,
    delta: float = 0.1,
    delay: DelayBound | None = None,
    width: float | WidthRule | None = None,
    **options: Unpack[LoopOptions],
) -> BPEDelay:
    r"""Build BPE-Delay: rounds of pure exploration, long enough for late outcomes.

    The algorithm of Vakili et al. (2023). The authors' runs: ``horizon=1000, delta=0.01,
    noise_variance=0.02**2, width=6.0, delay=SubExponentialDelay(mean, xi=9.0, b=1.0)``. There is no
    ``acquisition``, ``beta``, ``retention``, ``pending`` or ``refit``, which its rule defines.

    Args:
        covar_module: Kernel over actions, held fixed.
        noise_variance: Variance λ² of the noise, in squared units of the outcome.
        horizon: Number T of asks.
        delta: Probability of failure δ, in (0, 1).
        delay: How late outcomes may be, in rounds of asking, such as
            :class:`tvbo.optimizers.bpe.SubExponentialDelay`. None learns it from what arrives.
        width: How wide the bounds are: a number is the multiplier of the standard deviation;
            :class:`tvbo.optimizers.bpe.FiniteSetWidth` is that of Theorem 6.1; any function of an
            ``Exploration`` will do. None is ``PriorDrawWidth``, which needs no norm of the
            function, and has no theorem behind it.
        **options: Options of every recipe, :class:`LoopOptions`.

    Raises:
        ValueError: if a parameter is out of range, the width is not made for the search space, or
            floats come with integers or categories.
        TypeError: if ``delay`` or ``width`` is none.
        BotorchTensorDimensionError: if the kernel has a batch.
    """
    _check_names("bpe_delay", options, LoopOptions)
    if width is not None and not callable(width):
        width = FixedWidth(as_number("width", width))
    search_space = make_search_space(options.get("bounds"), options.get("choices"))
    if isinstance(search_space, MixedSpace):
        raise ValueError(
            "Expected floats, or up to 1,000 combinations of integers and categories. Got both, or "
            "more combinations: name those to explore as choices."
        )
    given = dict(options, covar_module=covar_module, noise_variance=noise_variance)
    given |= {"horizon": horizon, "delta": delta, "delay": delay, "width": width}
    return BPEDelay(
        search_space,
        covar_module,
        noise_variance,
        horizon,
        delta=delta,
        delay=delay,
        width=width,
        minimize=bool(Goals.of(minimize=options.get("minimize")).minimized),
        **_loop_options("bpe_delay", options, given),
    )


def random_search(
    *,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    **options: Unpack[LoopOptions],
) -> RandomSearch:
    """Build a search by uniformly random actions, whatever the context.

    Args:
        context_bounds: Range of the contexts, a ``2 x c`` tensor or ``c`` pairs (lower, upper). It
            is given where the search is asked with contexts, as the recipes compared with it are.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        **options: Options of every recipe, :class:`LoopOptions`.

    Raises:
        ValueError: if both ``context_bounds`` and ``contexts`` are given.
    """
    _check_names("random_search", options, LoopOptions)
    undeclared = context_bounds is None and contexts is None
    given = {**options, "context_bounds": context_bounds, "contexts": contexts}
    return RandomSearch(
        make_search_space(options.get("bounds"), options.get("choices")),
        contexts=None if undeclared else make_search_space(context_bounds, contexts, "context"),
        minimize=bool(Goals.of(minimize=options.get("minimize")).minimized),
        **_loop_options("random_search", options, given),
    )


def _build(
    recipe: str,
    all_given: Mapping[str, Any],
    forgetting_rate: float | None,
    own: Acquisition,
    options: ContextualGPOptions | GPOptions,
    admission: Retention | None = None,
    has_contexts: bool = False,
) -> GPOptimizer:
    """Build an optimizer with a Gaussian process for each outcome, from a recipe and its options.

    Args:
        recipe: Name of the recipe.
        all_given: All its arguments, as they were given.
        forgetting_rate: The drift.
        own: The recipe's own acquisition, which has ``beta``.
        options: The options given.
        admission: The recipe's own rule for which outcomes are admitted, after ``retention``.
        has_contexts: Whether the model is one of action and context.
    """
    _check_names(recipe, options, ContextualGPOptions if has_contexts else GPOptions)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    goals = Goals.of(*map(given.get, ("objectives", "constraints", "minimize", "min_feasibility")))
    search_space = make_search_space(given.get("bounds"), given.get("choices"))
    contexts = _context_space(given, search_space) if has_contexts else None
    spaces = [each for each in (search_space, contexts) if each is not None]
    layout = InputLayout(search_space.dim, 0 if contexts is None else contexts.dim)
    retention = given.get("retention")
    if _learns_on_box(given):
        given["temporal_kernel"] = "auto"
        if retention is None and admission is None:
            limit = DEFAULT_STATIC_LIMIT if forgetting_rate == 0 else DEFAULT_LIMIT
            retention = SizeLimit(limit, context_columns=tuple(layout.context_features))
    models = []
    for place in range(len(goals.names)):
        fitter = ModelFitter(
            layout,
            torch.cat([each.bounds for each in spaces], dim=-1),
            forgetting_rate=forgetting_rate,
            widths=[width for each in spaces for width in each.varying.values()],
            **{name: given[name] for name in OPTIONS_OF_FITS if name in given},
        )
        kept = retention or _stale_cutoff(fitter)
        if admission is not None:
            kept = admission if kept is None else kept & admission
        choices = _streamed_rows(fitter, search_space, contexts)
        models.append(OutcomeModel(fitter, kept, place < goals.num_objectives, choices))
    return GPOptimizer(
        search_space,
        models,
        _acquisition(own, given, goals),
        contexts=contexts,
        pending=given.get("pending"),
        initial=given.get("initial", fitter.num_initial()),
        goals=goals,
        failures=given.get("failures", "learn"),
        duration=given.get("duration", 0.0),
        step_limit=StepLimit.of(search_space, given.get("max_step"), given.get("max_rate")),
        **_loop_options(recipe, given, all_given),
    )


def _check_names(recipe: str, options: LoopOptions, known: type[LoopOptions]) -> None:
    """Raise ``TypeError`` for an option that a recipe does not have."""
    for name in options.keys() - known.__annotations__.keys():
        names = [*known.__annotations__, *signature(globals()[recipe]).parameters]
        raise TypeError(f"Expected an option of {recipe}. Got {name!r}{did_you_mean(name, names)}")


def _acquisition(own: Acquisition, options: Mapping[str, Any], goals: Goals) -> Acquisition:
    """Return the acquisition that is given, or the recipe's own."""
    given, beta = options.get("acquisition"), options.get("beta")
    if given is not None and beta is not None:
        raise ValueError(
            "Expected either acquisition or beta, which is that of the recipe's own. Got both."
        )
    if goals.num_objectives > 1 and beta is not None:
        raise ValueError(
            "Expected no beta with several objectives, which are not chosen by an upper bound. "
            f"Got {beta!r}."
        )
    return own if given is None else as_acquisition(given)


def _context_space(options: Mapping[str, Any], search_space: SearchSpace) -> SearchSpace:
    """Return the declared contexts, for which the kernels are made."""
    contexts = make_search_space(
        options.get("context_bounds"),
        options.get("contexts"),
        "context",
        options.get("contexts_outside"),
    )
    structure = options.get("structure")
    kernels = options.get("action_kernel"), options.get("context_kernel")
    has_parts = kernels != (None, None) or structure not in (None, "product")
    if options.get("covar_module") is not None and has_parts:
        raise ValueError(
            "Expected either covar_module, over action and context, or its parts. Got both: "
            f"structure={structure!r}, action_kernel={kernels[0]!r}, context_kernel={kernels[1]!r}."
        )
    for kernel, space in zip(kernels, (search_space, contexts), strict=True):
        if kernel is None or isinstance(space, MixedSpace):
            continue
        # A task that a kernel does not know is refused here, not when it is observed. Between
        # bounds any row may come; this one is no whole number, save by chance.
        lower, upper = space.bounds
        between = lower.lerp(upper, 0.382).unsqueeze(0)
        with torch.no_grad():
            kernel(space.choices if isinstance(space, FiniteSpace) else between, diag=True)
    return contexts


def _learns_on_box(options: Mapping[str, Any]) -> bool:
    """Return whether the kernel is learned on a box, for which there are defaults."""
    if options.get("bounds") is None or options.get("structure") not in (None, "product"):
        return False
    kernels = ("temporal_kernel", "covar_module", "action_kernel", "context_kernel")
    return all(options.get(name) is None for name in kernels)


def _upper_bound(options: Mapping[str, Any]) -> UCB:
    """Return UCB with the β given, or the default one."""
    is_default, beta = _learns_on_box(options), options.get("beta")
    default = as_beta_schedule(DEFAULT_BETA) if is_default else LogBeta()
    return UCB(default if beta is None else as_beta_schedule(beta), edge_correction=is_default)


def _stale_cutoff(fitter: ModelFitter) -> Retention | None:
    """Return the rule that discards observations without weight, where nothing is ever learned."""
    if not isinstance(fitter.refit, RefitNever):
        return None
    kernels, rate = fitter.drift.temporal_kernels, fitter.forgetting_rate
    if kernels:
        length = memory_length(kernels, NEGLIGIBLE_WEIGHT)
        return SlidingWindow(length) if math.isfinite(length) else None
    return StaleCutoff(rate, NEGLIGIBLE_WEIGHT) if rate else None


def _streamed_rows(
    fitter: ModelFitter, search_space: SearchSpace, contexts: SearchSpace | None
) -> Tensor | None:
    """Return the rows at which the posterior is kept from round to round; None for any rows.

    They are moderately many pairs of action and context, unless hyperparameters are learned in each
    round.
    """
    if fitter.refit == RefitEvery(1) or not isinstance(search_space, FiniteSpace):
        return None
    rows = search_space.choices
    if contexts is None:
        return rows
    if not isinstance(contexts, FiniteSpace) or len(rows) * len(contexts.rows) > MAX_PAIRS:
        return None
    actions = rows.repeat_interleave(len(contexts.rows), dim=0)
    return torch.cat([actions, contexts.rows.repeat(len(rows), 1)], dim=-1)


def _loop_options(
    recipe: str, options: Mapping[str, Any], all_given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what an optimizer of any kind is given.

    Args:
        recipe: Name of the recipe.
        options: Its options.
        all_given: All its arguments, as they were given.
    """
    unit, zone = options.get("time_unit"), options.get("time_zone")
    if unit is None and zone is not None:
        raise ValueError(f"Expected time_unit with a time zone. Got time_zone={zone!r}.")
    return {
        "generator": options.get("generator"),
        "time_scale": None if unit is None else TimeScale(unit, zone),
        "settings": Settings(recipe, all_given),
    }
