"""Space-filling actions, for the rounds before hyperparameters can be learned."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from tvbo.randomness import generator_of
from tvbo.spaces import FiniteSpace, MixedSpace
from tvbo.spaces.search_space import SearchSpace


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
