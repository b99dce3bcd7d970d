"""Bandits on a finite set without a model of the objective, and rules that explore nothing."""

from __future__ import annotations

from typing import Unpack

from torch import Generator, Tensor

from tvbo.optimizers.constant_rules import FixedAction, LastBest
from tvbo.optimizers.drift_bandits import (
    DiscountedUCB,
    SlidingWindowUCB,
    d_ucb_discount,
    sw_ucb_window,
)
from tvbo.optimizers.recipes.recipe import recipe
from tvbo.optimizers.units import UnitOptions
from tvbo.spaces import (
    ContextSpace,
    Space,
    Table,
    make_context_space,
    make_finite_space,
    make_search_space,
)


@recipe()
def sw_ucb(
    *,
    choices: Table,
    reward_bounds: tuple[float, float],
    window: float | None = None,
    horizon: int | None = None,
    exploration: float = 0.5,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> SlidingWindowUCB:
    """Build SW-UCB: UCB on the outcomes of a sliding window (Garivier, Moulines, 2011).

    Each arm is learned by itself. With a window shorter than there are arms, an arm is forgotten
    before it is compared with all others.

    Args:
        choices: Arms, ``n x d``, or a table with a row for each, or names: ``{'arm': ['a', 'b']}``.
        reward_bounds: Lowest and highest outcome to expect; their difference scales the bonus.
        window: Window τ, in units of time. None is :func:`tvbo.optimizers.sw_ucb_window` of
            ``horizon``, for times that count rounds.
        horizon: Number of rounds, where ``window`` is None.
        exploration: Exploration ξ.
        context_bounds: Range of the contexts, which are ignored; None without.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``window`` and ``horizon`` is given, or if an argument is
            out of range.
    """
    if window is None or horizon is not None:
        window = sw_ucb_window(_horizon("window", window, horizon))
    space = _contexts(context_bounds, contexts)
    return SlidingWindowUCB(
        make_finite_space(choices), window, reward_bounds, exploration, generator, space
    )


@recipe()
def d_ucb(
    *,
    choices: Table,
    reward_bounds: tuple[float, float],
    discount: float | None = None,
    horizon: int | None = None,
    exploration: float = 0.5,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> DiscountedUCB:
    """Build D-UCB: UCB on discounted outcomes (Garivier, Moulines, 2011).

    Each arm is learned by itself.

    Args:
        choices: Arms, ``n x d``, or a table with a row for each, or names: ``{'arm': ['a', 'b']}``.
        reward_bounds: Lowest and highest outcome to expect; their difference scales the bonus.
        discount: Discount γ per unit of time, in (0, 1). None is
            :func:`tvbo.optimizers.d_ucb_discount` of ``horizon``, for times that count rounds.
        horizon: Number of rounds, where ``discount`` is None.
        exploration: Exploration ξ.
        context_bounds: Range of the contexts, which are ignored; None without.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``discount`` and ``horizon`` is given, or if an argument
            is out of range.
    """
    if discount is None or horizon is not None:
        discount = d_ucb_discount(_horizon("discount", discount, horizon))
    space = _contexts(context_bounds, contexts)
    return DiscountedUCB(
        make_finite_space(choices), discount, reward_bounds, exploration, generator, space
    )


@recipe()
def last_best(
    *,
    choices: Table,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> LastBest:
    """Build the rule that takes the action whose newest outcome is the largest.

    It is what people do without a model: stay with an action while it is good, else return to the
    one that was best when last tried.

    Args:
        choices: Finite set of actions, ``n x d``.
        context_bounds: Range of the contexts, which are ignored; None without.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        generator: Source of randomness. None is a fresh one with seed 0.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.
    """
    return LastBest(make_finite_space(choices), generator, _contexts(context_bounds, contexts))


@recipe()
def fixed_action(
    *,
    X: Tensor,
    bounds: Space | None = None,
    choices: Table | None = None,
    context_bounds: Space | None = None,
    contexts: Table | None = None,
    generator: Generator | None = None,
    **units: Unpack[UnitOptions],
) -> FixedAction:
    """Build the rule that always takes the same action, such as the best one of a log.

    Args:
        X: The action, ``d`` or ``1 x d``.
        bounds: Box of actions: a ``2 x d`` tensor, or ``d`` pairs (lower, upper); or parameters by
            name. Give either this or ``choices``.
        choices: Finite set of actions, ``n x d``, or a table with a row for each, or integers and
            categories by name.
        context_bounds: Range of the contexts, which are ignored; None without.
        contexts: All contexts, ``m x c``, instead of ``context_bounds``.
        generator: Not drawn from.
        **units: Units of times and outcomes, :class:`tvbo.optimizers.UnitOptions`.

    Raises:
        ValueError: unless exactly one of ``bounds`` and ``choices`` is given.
        InputDataError: if the action is not in the search space.
    """
    space = make_search_space(bounds, choices)
    return FixedAction(space, X, generator, _contexts(context_bounds, contexts))


def _horizon(name: str, value: float | None, horizon: int | None) -> int:
    """Return the horizon; raise unless it was given without ``value``."""
    if value is not None or horizon is None:
        both = "neither" if horizon is None else "both"
        raise ValueError(f"Expected either {name} or horizon. Got {both}.")
    return horizon


def _contexts(context_bounds: Space | None, contexts: Table | None) -> ContextSpace | None:
    if context_bounds is None and contexts is None:
        return None
    return make_context_space(context_bounds, contexts)
