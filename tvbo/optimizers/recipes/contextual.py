"""Algorithms that use the context (Krause, Ong, 2011)."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from gpytorch.kernels import Kernel, LinearKernel
from torch import Tensor

from tvbo.fit.contextual_model_fitter import ContextualModelFitter
from tvbo.fit.model_fitter import ModelFitter
from tvbo.kernels import ContextActionKernel, IdentityKernel
from tvbo.optimizers.builder import (
    ContextOptions,
    ContextualGPOptions,
    build,
    context_space_of,
)
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.recipes.drifting import gp_ucb
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.spaces import (
    Category,
    ContextList,
    ContextSpace,
    FiniteSpace,
    InputLayout,
    SearchSpace,
    make_search_space,
)


@recipe()
def tv_cgp_ucb(
    *, forgetting_rate: float | None = None, **options: Unpack[ContextualGPOptions]
) -> GPOptimizer:
    """Build CGP-UCB whose data are forgotten smoothly: context and drift in one model.

    The rule (2) of Krause, Ong (2011), on the posterior (7)-(8) of Bogunovic et al. (2016) with a
    :class:`tvbo.kernels.ContextActionKernel` for their ``k``. Neither paper has the two together.
    The schedules for ``beta`` of Theorem 1 are :class:`tvbo.acquisition.FiniteBeta`,
    :class:`tvbo.acquisition.CompactBeta` and :class:`tvbo.acquisition.RKHSBeta`.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of a model over action and context,
            :class:`tvbo.optimizers.builder.ContextualGPOptions`.

    Example:
        >>> optimizer = tv_cgp_ucb(bounds=bounds, context_bounds=torch.tensor([[1.0], [4.0]]))
        >>> trial = optimizer.ask(t=3.5, context=torch.tensor([2.2]))
        >>> optimizer.tell(trial, 0.7)
        >>> optimizer.recommend(context=torch.tensor([2.2]))
    """
    contexts = context_space_of(options)
    return build(
        GPOptimizer,
        forgetting_rate=forgetting_rate,
        context_space=contexts,
        make_fitter=partial(_joint_fitter, contexts),
        **options,
    )


@recipe()
def cgp_ucb(**options: Unpack[ContextualGPOptions]) -> GPOptimizer:
    """Build CGP-UCB (Krause, Ong, 2011, rule (2)): one model of action and context, without drift.

    Args:
        **options: Options of a model over action and context,
            :class:`tvbo.optimizers.builder.ContextualGPOptions`.
    """
    return tv_cgp_ucb(forgetting_rate=0.0, **options)


@recipe(covar_module="its kernel is linear in the features; shared_kernel is what arms share")
def linear_ucb(
    *, shared_kernel: Kernel | None = None, **options: Unpack[ContextOptions]
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
        **options: Options of every recipe that is asked with a context,
            :class:`tvbo.optimizers.builder.ContextOptions`; ``covar_module`` is refused.

    Raises:
        ValueError: if contexts are given beside ``bounds``, or a shared kernel beside ``bounds``
            without categories.
    """
    linear = LinearKernel().to(torch.float64)
    linear.variance = torch.ones(1, dtype=torch.float64)
    arms: Kernel = IdentityKernel() if shared_kernel is None else IdentityKernel() + shared_kernel
    if options.get("noise_variance") is None:
        options["noise_variance"] = 1.0
    if options.get("acquisition") is None and options.get("beta") is None:
        options["beta"] = 1.0
    if options.get("bounds") is None:
        return cgp_ucb(action_kernel=arms, context_kernel=linear, **options)
    if options.get("contexts") is not None or options.get("context_bounds") is not None:
        raise ValueError(
            "Expected either bounds of the features of each arm, or choices and contexts. Got both."
        )
    given: Any = {
        name: value for name, value in options.items() if name not in ("contexts", "context_bounds")
    }
    columns = _category_columns(make_search_space(options["bounds"], None))
    if not any(columns):
        if shared_kernel is not None:
            raise ValueError("Expected categories among the bounds for shared_kernel. Got none.")
        return gp_ucb(covar_module=linear, **given)
    kernel = ContextActionKernel(
        arms,
        linear,
        action_features=[i for i, is_category in enumerate(columns) if is_category],
        context_features=[i for i, is_category in enumerate(columns) if not is_category],
    )
    return gp_ucb(covar_module=kernel, **given)


def _category_columns(search_space: SearchSpace) -> list[bool]:
    """Return whether each column of an action belongs to a category."""
    if search_space.parameters is None:
        return [False] * search_space.dim
    parts = search_space.parameters.varying
    return [isinstance(part, Category) for part in parts for _ in range(part.width)]


def _joint_fitter(
    contexts: ContextSpace,
    search_space: SearchSpace,
    forgetting_rate: float | None,
    options: ContextualGPOptions,
) -> ModelFitter:
    """Return what fits the hyperparameters of a model over action, context and time.

    Raises:
        ValueError: if ``covar_module`` is given beside a part of it.
        InputDataError: if a kernel over tasks does not know an action or a context.
    """
    structure = options.get("structure")
    if structure is None:
        structure = "product"
    action_kernel, context_kernel = options.get("action_kernel"), options.get("context_kernel")
    with torch.no_grad():
        # A task that a kernel does not know is refused here: once told, no outcome is taken back.
        if context_kernel is not None:
            context_kernel(_examples(contexts), diag=True)
        if isinstance(search_space, FiniteSpace) and action_kernel is not None:
            action_kernel(search_space.choices, diag=True)
    layout = InputLayout(search_space.dim, contexts.dim)
    covar_module = options.get("covar_module")
    if covar_module is None:
        return ContextualModelFitter(
            layout,
            search_space.bounds,
            contexts.bounds,
            structure=structure,
            action_kernel=action_kernel,
            context_kernel=context_kernel,
            forgetting_rate=forgetting_rate,
            temporal_kernel=options.get("temporal_kernel"),
            noise_variance=options.get("noise_variance"),
            mean_module=options.get("mean_module"),
            likelihood=options.get("likelihood"),
            refit=options.get("refit"),
        )
    if action_kernel is not None or context_kernel is not None or structure != "product":
        raise ValueError(
            "Expected either covar_module, over action and context, or its parts. Got both: "
            f"structure={structure!r}, action_kernel={type(action_kernel).__name__}, "
            f"context_kernel={type(context_kernel).__name__} beside covar_module."
        )
    ranges = torch.cat([search_space.bounds, contexts.bounds], dim=-1)
    return ModelFitter(
        layout,
        ranges,
        covar_module=covar_module,
        forgetting_rate=forgetting_rate,
        temporal_kernel=options.get("temporal_kernel"),
        noise_variance=options.get("noise_variance"),
        mean_module=options.get("mean_module"),
        likelihood=options.get("likelihood"),
        refit=options.get("refit"),
    )


def _examples(contexts: ContextSpace) -> Tensor:
    """Return contexts to try a kernel on, ``m x c``."""
    if isinstance(contexts, ContextList):
        return contexts.contexts
    lower, upper = contexts.bounds
    # Between bounds, any context may come; this one is no whole number, save by chance.
    example: Tensor = lower.lerp(upper, 0.382)
    return example.unsqueeze(0)
