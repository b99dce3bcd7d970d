"""BKB as an optimizer: a loop whose model is a sketch."""

from __future__ import annotations

from torch import Tensor

from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.nystrom_surrogate import NystromSurrogate


class BKB(GPOptimizer):
    """Budgeted kernelized bandits (Calandriello et al., 2019, Algorithm 1) by ask/tell.

    A :class:`GPOptimizer` whose surrogate is a :class:`NystromSurrogate`. All observations are held
    and count in the posterior; what the model's size counts is the inducing points. The recipe
    :func:`tvbo.recipes.bkb` puts it together.
    """

    surrogate: NystromSurrogate

    @property
    def model_size(self) -> int:
        """Number of inducing points of the newest model, repeats merged; 0 before the first."""
        return len(self.inducing_points)

    @property
    def inducing_points(self) -> Tensor:
        """Rows ``[action | context | time]`` of the newest model's inducing set, ``m x d``."""
        return self.surrogate.inducing_points

    @property
    def inclusion_probabilities(self) -> Tensor:
        """Of each observation in the newest model, how likely it was to be drawn, ``n``."""
        return self.surrogate.inclusion_probabilities
