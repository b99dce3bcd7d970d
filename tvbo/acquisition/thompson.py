"""Thompson sampling: act as if a draw from the posterior were the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from tvbo.acquisition.beta import BetaSchedule, as_beta_schedule
from tvbo.models.draws import draw_function
from tvbo.search_space import AskContext, RowIndex
from tvbo.ties import first_largest


class DrawnValues(AcquisitionFunction):
    """A function drawn at a set of actions.

    Args:
        model: Where it was drawn from.
        candidates: The actions, ``n x d``.
        values: What was drawn, ``n``.
    """

    def __init__(self, model: Model, candidates: Tensor, values: Tensor):
        super().__init__(model)
        self.candidates = candidates
        self.values = values

    def best(self) -> Tensor:
        """The action with the largest value, ``1 x d``."""
        return self.candidates[first_largest(self.values)].clone().unsqueeze(0)

    def forward(self, X: Tensor) -> Tensor:
        """Values at rows that begin with a candidate, ``b`` for ``b x 1 x d'``.

        Raises:
            InputDataError: if an action is none of the candidates: the draw is not known there.
        """
        actions = X[..., 0, : self.candidates.shape[-1]]
        return self.values[RowIndex(self.candidates).index(actions)]


@dataclass(frozen=True)
class ThompsonSampling:
    r"""GP-TS (Chowdhury, Gopalan, 2017): the best action of a function drawn from the posterior.

    On a finite set the draw is a joint one over all choices. On a box it is one over scrambled
    Sobol points, new ones in each round, and the best of these is taken.

    Args:
        beta: The draw has :math:`\sqrt{\beta_t}` times the posterior's standard deviation: their
            :math:`v_t = \sqrt{\beta_t}`. A number, or a schedule by round; 1 is the posterior.
        num_candidates: Points on a box.

    Raises:
        ValueError: if β is negative, or ``num_candidates`` is not positive.
    """

    beta: float | BetaSchedule = 1.0
    num_candidates: int = 1000

    def __post_init__(self):
        as_beta_schedule(self.beta)
        if self.num_candidates < 1 or self.num_candidates != int(self.num_candidates):
            raise ValueError(
                f"Expected num_candidates, a whole number >= 1. Got {self.num_candidates}."
            )

    def __call__(self, model: Model, ask_context: AskContext) -> DrawnValues:
        """A function drawn for this round.

        Raises:
            ValueError: if ``ask_context`` has no search space or no generator.
        """
        if ask_context.search_space is None or ask_context.generator is None:
            raise ValueError(
                "Expected an AskContext with a search_space and a generator. Got one without."
            )
        candidates = self._candidates(ask_context)
        rows = ask_context.rows(candidates)
        scale = as_beta_schedule(self.beta)(ask_context.round) ** 0.5
        values = draw_function(model, rows, ask_context.generator, scale)
        return DrawnValues(model, candidates, values)

    def _candidates(self, ask_context: AskContext) -> Tensor:
        choices = getattr(ask_context.search_space, "choices", None)
        if choices is not None:
            return choices
        lower, upper = ask_context.search_space.bounds
        seed = _seed(ask_context.generator)
        unit = SobolEngine(ask_context.search_space.dim, scramble=True, seed=seed)
        return lower + (upper - lower) * unit.draw(self.num_candidates, dtype=torch.float64)


def _seed(generator: Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=generator))
