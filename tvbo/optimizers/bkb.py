"""BKB as an optimizer: Bayesian optimization with inducing points."""

from __future__ import annotations

from torch import Tensor

from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.nystrom_state import NystromState


class BKB(GPOptimizer):
    """Budgeted kernelized bandits (Calandriello et al., 2019, Algorithm 1) by ask/tell.

    A :class:`GPOptimizer` whose posterior is a :class:`NystromState`. All observations are held and
    count in the posterior; the size of the model is the number of inducing points. The recipe
    :func:`tvbo.recipes.bkb` puts it together.
    """

    posterior_state: NystromState

    @property
    def model_size(self) -> int:
        """Number of inducing points of the newest model, repeats merged; 0 before the first."""
        return len(self.inducing_points)

    @property
    def inducing_points(self) -> Tensor:
        """Rows ``[action | context | time]`` of the newest model's inducing set, ``m x d``."""
        return self.posterior_state.inducing_points

    @property
    def inclusion_probabilities(self) -> Tensor:
        """Probability with which each observation in the newest model was drawn, ``n``."""
        return self.posterior_state.inclusion_probabilities
