"""Thompson sampling: choose the best action of a function drawn from the posterior."""

from __future__ import annotations

from dataclasses import dataclass

from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.pathwise import SamplePath
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from tvbo.acquisition.ucb import BetaSchedule, KnownValues, ShareInside, as_beta_schedule
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.pathwise import draw_function, draw_path, has_paths
from tvbo.models.scale import marginals
from tvbo.randomness import draw_seed
from tvbo.spaces import AskContext, FiniteSpace
from tvbo.values import check_count


class DrawnFunction(AcquisitionFunction):
    """A drawn function, at any action and with gradients.

    Args:
        model: The model whose posterior was drawn from.
        path: The function of rows ``b x 1 x d``, with values ``b x 1``.
        scale: Multiplier on its deviation from the posterior mean.
        raw_samples: Number of points from which a search of a box starts.
        share: Of the variance, how much counts at rows ``b x d``; None counts all of it.
    """

    def __init__(
        self,
        model: Model,
        path: SamplePath,
        scale: float,
        raw_samples: int,
        share: ShareInside | None = None,
    ):
        super().__init__(model)
        self.path = path
        self.scale = scale
        self.raw_samples = raw_samples
        self.share = share

    def forward(self, X: Tensor) -> Tensor:
        """Return the drawn values, ``b``, at rows ``b x 1 x d``."""
        values = self.path(X)
        if self.scale != 1 or self.share is not None:
            mean = marginals(self.model, X)[0].view_as(values)
            scale = self.scale if self.share is None else self.scale * self.share(X).sqrt()
            values = mean + scale * (values - mean)
        return values.squeeze(-1)


@dataclass(frozen=True)
class ThompsonSampling:
    r"""GP-TS (Chowdhury, Gopalan, 2017): the best action of a function drawn from the posterior.

    On a finite set the function is drawn jointly at all choices. On a box it is drawn as a whole,
    by random features of the prior and Matheron's rule (Wilson et al., 2020), and searched by its
    gradient. Its mean and covariance are those of the posterior, since each draw has features of
    its own. Where the kernel has none, such as a linear kernel, the function is drawn
    jointly at scrambled Sobol points, and the best of these is chosen.

    Args:
        beta: :math:`\beta_t`, a number or a schedule by round: the posterior standard deviation is
            multiplied by :math:`\sqrt{\beta_t}`, the :math:`v_t` of the paper. 1 draws from the
            posterior itself.
        num_candidates: Number of Sobol points on a box, from the best of which the search starts.
        edge_correction: Whether the variance near the edge of a box counts for less, as in
            :class:`EdgeCorrectedUCB`, and where it is left out there.

    Raises:
        ValueError: if β is negative, or ``num_candidates`` is not positive.
    """

    beta: float | BetaSchedule = 1.0
    num_candidates: int = 1000
    edge_correction: bool = False

    def __post_init__(self) -> None:
        as_beta_schedule(self.beta)
        check_count(num_candidates=self.num_candidates)

    def __call__(self, model: Model, ask_context: AskContext) -> KnownValues | DrawnFunction:
        """Return a function drawn for this round.

        Raises:
            ValueError: if ``ask_context`` has no search space or no generator.
        """
        search_space, generator = ask_context.search_space, ask_context.generator
        if search_space is None or generator is None:
            raise ValueError(
                "Expected an AskContext with a search_space and a generator. Got one without."
            )
        scale = as_beta_schedule(self.beta)(ask_context.round) ** 0.5
        if not isinstance(search_space, FiniteSpace) and has_paths(model):
            path = draw_path(model, generator)
            share = None
            if self.edge_correction and isinstance(model, EnsembleGP) and model.is_closed_form:
                share = ShareInside(model, search_space.whole)
            return DrawnFunction(model, path, scale, self.num_candidates, share)
        if isinstance(search_space, FiniteSpace):
            candidates = search_space
        else:
            bounds, n, seed = search_space.bounds, self.num_candidates, draw_seed(generator)
            candidates = FiniteSpace(draw_sobol_samples(bounds, n=n, q=1, seed=seed).squeeze(1))
        values = draw_function(model, ask_context.rows(candidates.rows), generator, scale)
        return KnownValues(model, candidates, values)
