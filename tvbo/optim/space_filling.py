"""Space-filling actions, for the rounds before hyperparameters can be learned."""

from __future__ import annotations

import torch
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor
from torch.quasirandom import SobolEngine

from tvbo.randomness import generator_of
from tvbo.spaces import FiniteSpace, MixedSpace
from tvbo.spaces.search_space import SearchSpace


class SpaceFilling:
    """Space-filling actions from a scrambled Sobol sequence.

    On a box, the points of the sequence. On a finite set, the untried choice nearest to the next
    point, with each column scaled by its range; None once all were tried. On a mixed space, the
    values in whose share of [0, 1) the coordinates of the point are. In more columns than a Sobol
    sequence has, uniform draws.

    Attributes:
        num_drawn: Number of points of the sequence that were drawn.
    """

    def __init__(self) -> None:
        self.num_drawn = 0

    def next(self, search_space: SearchSpace, tried: Tensor, seed: int) -> Tensor | None:
        """Return the next action, ``1 x d``; None if all were tried.

        Args:
            search_space: The set of actions.
            tried: Observed and pending actions, ``n x d``.
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
        self.num_drawn += 1
        if dim > SobolEngine.MAXDIM:
            return search_space.sample(generator_of(seed, self.num_drawn))
        # The points of the sequence do not depend on how many are drawn.
        cube = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dim)
        point = draw_sobol_samples(cube, n=self.num_drawn, q=1, seed=seed)[-1]
        if isinstance(search_space, FiniteSpace):
            return search_space.from_unit(point, untried)
        return search_space.from_unit(point)
