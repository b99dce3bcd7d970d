"""Space-filling actions, for the rounds before hyperparameters can be learned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from tvbo.randomness import generator_of
from tvbo.spaces import AskContext, FiniteSpace, MixedSpace
from tvbo.spaces.search_space import SearchSpace

LogProbability = Callable[[Tensor], Tensor]

MAX_STARTS = 8
"""Number of space-filling actions looked at for a new one that probably succeeds."""

STARTS_APART = 1_000
"""Distance of these in the sequence, of which later trials have the places after that of one."""


def space_filling_action(
    search_space: SearchSpace, tried: Tensor, number: int, seed: int
) -> Tensor | None:
    """Return a point of a scrambled Sobol sequence as an action, ``1 x d``.

    On a box, the point itself. On a finite set, the untried choice nearest to it, with each column
    scaled by its range; None once all were tried. On a mixed space, the values in whose share of
    [0, 1) the coordinates of the point are. In more columns than a Sobol sequence has, a uniform
    draw.

    Args:
        search_space: The set of actions.
        tried: Observed and pending actions, ``n x d``.
        number: Place of the point in the sequence, from 1, such as the number of the trial.
        seed: Seed of the scrambling, the same in each call.
    """
    if isinstance(search_space, FiniteSpace):
        # Others may have been tried as well, where choices come with an ask.
        untried = ~(search_space.choices.unsqueeze(1) == tried).all(dim=-1).any(dim=-1)
        if not untried.any():
            return None
    dim = search_space.dim
    if isinstance(search_space, MixedSpace):
        dim = len(search_space.parameters.varying)
    if dim > SobolEngine.MAXDIM:
        return search_space.sample(generator_of(seed, number))
    point = (
        SobolEngine(dim, scramble=True, seed=seed)
        .fast_forward(number - 1)
        .draw(1, dtype=torch.float64)
    )
    if isinstance(search_space, FiniteSpace):
        return search_space.from_unit(point, untried)
    return search_space.from_unit(point)


def next_start(
    ask_context: AskContext, tried: Tensor, seed: int, log_success: LogProbability | None
) -> Tensor | None:
    """Return a space-filling action that is new, and probably succeeds if a near one does.

    Args:
        ask_context: The present.
        tried: As of :func:`space_filling_action`.
        seed: Seed of the sequence.
        log_success: Log probability of success of rows; None where all succeed.

    Returns:
        The action, ``1 x d``; None where all choices were tried.
    """
    assert ask_context.search_space is not None
    for attempt in range(MAX_STARTS):
        number = ask_context.round + attempt * STARTS_APART
        X = space_filling_action(ask_context.search_space, tried, number, seed)
        if X is None:
            break
        # Others of a run in several processes may have begun what this number would be.
        is_new = not torch.isclose(tried, X).all(dim=-1).any()
        tried = torch.cat([tried, X])
        if is_new and (log_success is None or log_success(ask_context.rows(X)).exp() > 0.5):
            break
    return X
