"""Thompson sampling, algorithms that keep little, and those without a model of the objective."""

from __future__ import annotations

from typing import Unpack

from torch import Generator

from tvbo.acquisition import Acquisition, BetaSchedule, ThompsonSampling
from tvbo.optimizers.builder import GPOptions, build
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.recipes.drifting import set_defaults
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.optimizers.units import UnitOptions
from tvbo.retention import EntropyThreshold
from tvbo.retention.entropy import Mode
from tvbo.spaces import (
    Space,
    Table,
    make_context_space,
    make_search_space,
)

LEARNED_BETA = 0.5
"""β of :func:`gp_ts` on a box where kernel and drift are learned, from measurements."""


@recipe()
def gp_ts(*, forgetting_rate: float | None = 0.0, **options: Unpack[GPOptions]) -> GPOptimizer:
    r"""Build GP-TS: the best action of a function drawn from the posterior.

    The algorithm of Chowdhury and Gopalan (2017), whose acquisition is
    :class:`tvbo.acquisition.ThompsonSampling` with β = 1. Pending trials are hallucinated, as in
    the other recipes: the draw is from the posterior whose variance is as if all outcomes had come.
    With ``pending=IgnorePending()`` it is from the posterior of the outcomes that have come, as in
    the paper; draws differ in that case, too, but may name the same action.

    On a box whose drift is to be learned, with no kernel given, model and retention are those of
    :func:`tv_gp_ucb` there, the draw is corrected for the edge of the box, too, and β is 0.5.

    Args:
        forgetting_rate: Drift ε per unit of time, in [0, 1]. None learns it.
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`.
    """
    rule = _edge_corrected_thompson if set_defaults(forgetting_rate, options) else _thompson
    return build(GPOptimizer, forgetting_rate=forgetting_rate, rule=rule, **options)


@recipe()
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
        **options: Options of every recipe with a GP,
            :class:`tvbo.optimizers.builder.GPOptions`.

    Raises:
        ValueError: if ``budget``, ``mode`` or ``floor`` is refused by
            :class:`tvbo.retention.EntropyThreshold`.
    """
    threshold = EntropyThreshold(budget, mode, floor)
    return build(GPOptimizer, forgetting_rate=forgetting_rate, admission=threshold, **options)


@recipe()
def random_search(
    *,
    bounds: Space | None = None,
    choices: Table | None = None,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> RandomSearch:
    """Build a search by uniformly random actions, whatever the context.

    Args:
        bounds: Box of actions: a ``2 x d`` tensor, or ``d`` pairs (lower, upper); or parameters by
            name. Give either this or ``choices``.
        choices: Finite set of actions, ``n x d``, or a table with a row for each, or integers and
            categories by name.
        context_bounds: Range of the contexts, a ``2 x c`` tensor or ``c`` pairs (lower, upper). It
            is given where the search is asked with contexts, as the recipes compared with it are.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given; or if both
            ``context_bounds`` and ``contexts`` are.
    """
    undeclared = context_bounds is None and contexts is None
    return RandomSearch(
        make_search_space(bounds, choices),
        generator=generator,
        contexts=None if undeclared else make_context_space(context_bounds, contexts),
    )


def _thompson(beta: float | BetaSchedule | None) -> Acquisition:
    return ThompsonSampling(1.0 if beta is None else beta)


def _edge_corrected_thompson(beta: float | BetaSchedule | None) -> Acquisition:
    return ThompsonSampling(LEARNED_BETA if beta is None else beta, edge_correction=True)
