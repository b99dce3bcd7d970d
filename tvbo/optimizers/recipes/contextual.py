"""Algorithms that use the context (Krause, Ong, 2011)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, LinearKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Generator, Tensor

from tvbo.acquisition import UCB, BetaSchedule, LogBeta
from tvbo.acquisition.beta import as_beta_schedule
from tvbo.kernels import IdentityKernel, Structure
from tvbo.optimizers.contextual_surrogate import ContextualSurrogate
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.recipes.assembly import gp_optimizer
from tvbo.optimizers.refit import Refit
from tvbo.optimizers.surrogate import GPSurrogate
from tvbo.retention import Retention
from tvbo.search_space import Bounds, InputLayout, make_context_space, make_search_space


def tv_cgp_ucb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    structure: Structure = "product",
    action_kernel: Kernel | None = None,
    context_kernel: Kernel | None = None,
    covar_module: Kernel | None = None,
    forgetting_rate: float | None = None,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """CGP-UCB whose data is forgotten smoothly: context and drift in one model.

    The rule (2) of Krause, Ong (2011), on the posterior (7)-(8) of Bogunovic et al. (2016) with a
    :class:`tvbo.kernels.ContextActionKernel` for their ``k``. Neither paper has the two together.
    The model is a :class:`tvbo.models.ContextualGP`; where hyperparameters are not learned in every
    round, its posterior is kept up to date by a :class:`tvbo.models.StreamingGP` over all
    pairs of a finite action and a listed context, up to 5,000 pairs, and by a
    :class:`tvbo.models.IncrementalGP` otherwise.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box of actions; or
        choices: ``n x d`` for a finite set of actions.
        context_bounds: ``2 x c`` tensor, or ``c`` pairs: the range of contexts to expect; or
        contexts: ``m x c``, the list of them.
        structure: ``"product"``, ``"additive"`` or ``"both"``, as in
            :class:`tvbo.kernels.ContextActionKernel`; ``"both"`` has scales to learn.
        action_kernel: Kernel over actions, which it sees as columns ``0, ..., d - 1``. At a refit,
            those of its parameters that require gradients are learned, on a copy. None learns
            BoTorch's default. Where either kernel is None, outcomes are standardized, and a scale
            in the other one is in units of the standardized outcome.
        context_kernel: The same for contexts, as columns ``0, ..., c - 1``.
        covar_module: Instead of these three, any kernel over ``[action | context]``.
        forgetting_rate: ε per unit of time, in [0, 1]. None learns it.
        noise_variance: This and the others as in :func:`tv_gp_ucb`.
        mean_module: See there; over rows ``[action | context | time]``.
        likelihood: See there.
        beta: See there. The schedules of Theorem 1 are :class:`tvbo.acquisition.FiniteBeta`,
            :class:`tvbo.acquisition.CompactBeta` and :class:`tvbo.acquisition.RKHSBeta`.
        retention: See there.
        pending: See there.
        refit: See there.
        generator: See there.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given, and exactly one of
            ``context_bounds`` and ``contexts``; if ``covar_module`` is given beside a part of it;
            or if a parameter is out of range.

    Example:
        >>> optimizer = tv_cgp_ucb(bounds=bounds, context_bounds=torch.tensor([[1.0], [4.0]]))
        >>> trial = optimizer.ask(t=3.5, context=torch.tensor([2.2]))
        >>> optimizer.tell(trial, 0.7)
        >>> optimizer.recommend(context=torch.tensor([2.2]))
    """
    search_space = make_search_space(bounds, choices)
    declared = make_context_space(context_bounds, contexts)
    layout = InputLayout(search_space.dim, declared.dim)
    if context_kernel is not None:
        lower, upper = declared.bounds
        # Between bounds, any context may come; this one is no whole number, save by chance.
        known = declared.contexts if contexts is not None else lower.lerp(upper, 0.382).unsqueeze(0)
        with torch.no_grad():
            # A task that the kernel does not know is refused here: once told, none is taken back.
            context_kernel(known, diag=True)
    if choices is not None and action_kernel is not None:
        with torch.no_grad():
            action_kernel(search_space.choices, diag=True)
    learned = {
        "forgetting_rate": forgetting_rate,
        "noise_variance": noise_variance,
        "mean_module": mean_module,
        "likelihood": likelihood,
        "refit": refit,
    }
    if covar_module is None:
        dense = ContextualSurrogate(
            layout,
            search_space.bounds,
            declared.bounds,
            structure=structure,
            action_kernel=action_kernel,
            context_kernel=context_kernel,
            **learned,
        )
    elif action_kernel is None and context_kernel is None and structure == "product":
        ranges = torch.cat([search_space.bounds, declared.bounds], dim=-1)
        dense = GPSurrogate(layout, ranges, covar_module=covar_module, **learned)
    else:
        raise ValueError(
            "Expected either covar_module, over action and context, or its parts. Got both: "
            f"structure={structure!r}, action_kernel={type(action_kernel).__name__}, "
            f"context_kernel={type(context_kernel).__name__} beside covar_module."
        )
    return gp_optimizer(
        search_space, dense, UCB(as_beta_schedule(beta)), retention, generator, declared, pending
    )


def cgp_ucb(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    structure: Structure = "product",
    action_kernel: Kernel | None = None,
    context_kernel: Kernel | None = None,
    covar_module: Kernel | None = None,
    noise_variance: float | None = None,
    mean_module: Mean | None = None,
    likelihood: Likelihood | None = None,
    beta: float | BetaSchedule = LogBeta(),  # noqa: B008 (frozen)
    retention: Retention | None = None,
    pending: Pending | None = None,
    refit: Refit | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    """CGP-UCB (Krause, Ong, 2011, rule (2)): one model of action and context, without drift.

    Arguments as in :func:`tv_cgp_ucb`, with ε = 0.
    """
    return tv_cgp_ucb(
        bounds=bounds,
        choices=choices,
        context_bounds=context_bounds,
        contexts=contexts,
        structure=structure,
        action_kernel=action_kernel,
        context_kernel=context_kernel,
        covar_module=covar_module,
        forgetting_rate=0.0,
        noise_variance=noise_variance,
        mean_module=mean_module,
        likelihood=likelihood,
        beta=beta,
        retention=retention,
        pending=pending,
        refit=refit,
        generator=generator,
    )


def linear_ucb(
    *,
    choices: Tensor,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    shared_kernel: Kernel | None = None,
    noise_variance: float = 1.0,
    beta: float | BetaSchedule = 1.0,
    pending: Pending | None = None,
    generator: Generator | None = None,
) -> GPOptimizer:
    r"""LinUCB as a special case of CGP-UCB (Krause, Ong, 2011, Section 5.3).

    The kernel is the identity over arms times a linear kernel over features:

    .. math:: k\big((a, z), (a', z')\big) =
        \big(\mathbb{1}[a = a'] + k_\text{shared}(a, a')\big)\, z^\top z'.

    Without a shared kernel it is the disjoint LinUCB of Li et al. (2010), Algorithm 1, with
    ridge parameter ``noise_variance`` (theirs is 1) and
    :math:`\alpha = \sqrt{\beta\,\sigma^2}`. The features have no intercept but one among them.

    Args:
        choices: ``n x d`` arms, in any numbers that tell them apart.
        context_bounds: ``2 x c`` tensor, or ``c`` pairs: the range of the features; or
        contexts: ``m x c``, the list of them.
        shared_kernel: Kernel over arms, of what they share: the hybrid model (Li et al.,
            Algorithm 2, in which the shared features are products of arm features and context, has
            a ``LinearKernel`` of variance 1, where a fresh one has 0.69, on arm features in
            ``choices``). None: arms share nothing.
        noise_variance: σ².
        beta: β, or a schedule by round.
        pending: As in :func:`tv_gp_ucb`.
        generator: Source of randomness; default a fresh one with seed 0.

    Raises:
        ValueError: unless exactly one of ``context_bounds`` and ``contexts`` is given.
    """
    linear = LinearKernel().to(torch.float64)
    linear.variance = torch.ones(1, dtype=torch.float64)
    arms: Kernel = IdentityKernel()
    return cgp_ucb(
        choices=choices,
        context_bounds=context_bounds,
        contexts=contexts,
        action_kernel=arms if shared_kernel is None else arms + shared_kernel,
        context_kernel=linear,
        noise_variance=noise_variance,
        beta=beta,
        pending=pending,
        generator=generator,
    )
