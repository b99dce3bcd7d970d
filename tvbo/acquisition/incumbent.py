"""The value that an improvement is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.acquisition.analytic import posterior_mean
from tvbo.acquisition.domain import EVALUATION_CHUNK, Choices
from tvbo.acquisition.situation import Situation
from tvbo.randomness import copy_of, default_generator

Incumbent = Callable[[Model, Situation], float]
"""A rule that gives the value to improve on, in the unit of the outcomes, at a moment."""


@dataclass(frozen=True)
class BestObserved:
    r"""The largest outcome among the observations kept, :math:`\max_i y_i`.

    The incumbent of expected improvement in Bedi et al., Section 2, and in Nguyen et al. (2017).
    It knows neither time nor context. Under drift, or in another context, it is stale: an outcome
    that was high once stays the mark to beat until retention drops it. Under noise it is too high,
    the more so the more outcomes there are. :class:`BestMean` suffers from none of these.

    Before the first observation it is that of :class:`MaxMean`.
    """

    def __call__(self, model: Model, situation: Situation) -> float:
        """The value to improve on.

        Raises:
            ValueError: if there are no observations, and the situation has no domain.
        """
        if len(situation.observations) == 0:
            return MaxMean()(model, situation)
        return situation.observations.Y.max().item()


@dataclass(frozen=True)
class BestMean:
    r"""The largest posterior mean among the observed actions, :math:`\max_i \mu(x_i)`.

    Taken at the present time and context, whenever and in whatever context an action was observed.
    Before the first observation it is that of :class:`MaxMean`.
    """

    def __call__(self, model: Model, situation: Situation) -> float:
        """The value to improve on.

        Raises:
            ValueError: if there are no observations, and the situation has no domain.
        """
        if len(situation.observations) == 0:
            return MaxMean()(model, situation)
        if isinstance(situation.domain, Choices):
            # All of them, as the acquisition will ask for: models remember the newest rows.
            observed = situation.domain.index(_observed_actions(situation))
            return _means_of_choices(model, situation, situation.domain)[observed].max().item()
        return _means(model, situation.rows_observed()).max().item()


@dataclass(frozen=True)
class MaxMean:
    r"""The largest posterior mean of all actions, :math:`\max_x \mu(x)`, at time and context.

    Exact on a finite set. In a box it is searched for as acquisitions are, which may end in a local
    maximum; it is never less than that of :class:`BestMean`. The search costs about as much again
    as that for the action. With a constant prior mean and no observations, it is that constant.
    """

    def __call__(self, model: Model, situation: Situation) -> float:
        """The value to improve on.

        Raises:
            ValueError: if the situation has no domain.
        """
        domain = situation.domain
        if domain is None:
            raise ValueError("Expected a situation with a domain to search. Got domain=None.")
        if isinstance(domain, Choices):
            return _means_of_choices(model, situation, domain).max().item()
        # A copy, so that to ask for an incumbent changes no later draw.
        generator = copy_of(default_generator(situation.generator))
        found = domain.maximize(posterior_mean(model, situation), situation, generator)
        actions = torch.cat([found, _observed_actions(situation)])
        return _means(model, situation.rows(actions)).max().item()


def _observed_actions(situation: Situation) -> Tensor:
    return situation.observations.X[:, : situation.columns.num_actions]


def _means_of_choices(model: Model, situation: Situation, choices: Choices) -> Tensor:
    return _means(model, situation.rows(choices.choices), choices.chunk)


def _means(model: Model, rows: Tensor, chunk: int = EVALUATION_CHUNK) -> Tensor:
    """Posterior means of rows ``n x (d + c + 1)``, each by itself: ``n``."""
    with torch.no_grad():
        parts = [model.posterior(part).mean for part in rows.unsqueeze(-2).split(chunk)]
    return torch.cat(parts).flatten()
