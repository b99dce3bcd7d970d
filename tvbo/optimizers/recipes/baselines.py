"""Algorithms without a model of the objective."""

from __future__ import annotations

from torch import Generator, Tensor

from tvbo.optimizers.random_search import RandomSearch
from tvbo.optimizers.rexp3 import RExp3
from tvbo.search_space import Bounds, FiniteSpace, make_context_space, make_search_space


def random_search(
    *,
    bounds: Bounds | None = None,
    choices: Tensor | None = None,
    context_bounds: Bounds | None = None,
    contexts: Tensor | None = None,
    generator: Generator | None = None,
) -> RandomSearch:
    """Uniformly random actions, whatever the context.

    Args:
        bounds: ``2 x d`` tensor, or ``d`` pairs (lower, upper), for a box; or
        choices: ``n x d`` for a finite set.
        context_bounds: ``2 x c`` tensor, or ``c`` pairs, where it is asked with contexts as others
            are; or
        contexts: ``m x c``.
        generator: Source of randomness; default a fresh one with seed 0.
    """
    undeclared = context_bounds is None and contexts is None
    return RandomSearch(
        make_search_space(bounds, choices),
        generator=generator,
        contexts=None if undeclared else make_context_space(context_bounds, contexts),
    )


def rexp3(
    *,
    choices: Tensor,
    block: int,
    reward_bounds: tuple[float, float],
    exploration: float | None = None,
    generator: Generator | None = None,
) -> RExp3:
    """RExp3: Exp3 that starts afresh every block (Besbes et al., 2014).

    Arguments as in :class:`tvbo.optimizers.RExp3`.
    """
    return RExp3(FiniteSpace(choices), block, reward_bounds, exploration, generator)
