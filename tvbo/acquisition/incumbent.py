"""The value that an improvement is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.acquisition.analytic import posterior_mean
from tvbo.randomness import copy_of, default_generator
from tvbo.search_space import AskContext, FiniteSpace
from tvbo.search_space.finite_space import EVALUATION_CHUNK

Incumbent = Callable[[Model, AskContext], float]
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

    def __call__(self, model: Model, ask_context: AskContext) -> float:
        """The value to improve on.

        Raises:
            ValueError: if there are no observations, and ``ask_context`` has no search
                space.
        """
        if len(ask_context.observations) == 0:
            return MaxMean()(model, ask_context)
        return ask_context.observations.Y.max().item()


@dataclass(frozen=True)
class BestMean:
    r"""The largest posterior mean among the observed actions, :math:`\max_i \mu(x_i)`.

    Taken at the present time and context, whenever and in whatever context an action was observed.
    Before the first observation it is that of :class:`MaxMean`.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> float:
        """The value to improve on.

        Raises:
            ValueError: if there are no observations, and ``ask_context`` has no search
                space.
        """
        if len(ask_context.observations) == 0:
            return MaxMean()(model, ask_context)
        if isinstance(ask_context.search_space, FiniteSpace):
            # All of them, as the acquisition will ask for: models remember the newest rows.
            observed = ask_context.search_space.index(_observed_actions(ask_context))
            return (
                _means_of_choices(model, ask_context, ask_context.search_space)[observed]
                .max()
                .item()
            )
        return _means(model, ask_context.rows_observed()).max().item()


@dataclass(frozen=True)
class MaxMean:
    r"""The largest posterior mean of all actions, :math:`\max_x \mu(x)`, at time and context.

    Exact on a finite set. In a box it is searched for as acquisitions are, which may end in a local
    maximum; it is never less than that of :class:`BestMean`. The search costs about as much again
    as that for the action. With a constant prior mean and no observations, it is that constant.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> float:
        """The value to improve on.

        Raises:
            ValueError: if ``ask_context`` has no search space.
        """
        search_space = ask_context.search_space
        if search_space is None:
            raise ValueError("Expected an AskContext with a search_space. Got search_space=None.")
        if isinstance(search_space, FiniteSpace):
            return _means_of_choices(model, ask_context, search_space).max().item()
        # A copy, so that to ask for an incumbent changes no later draw.
        generator = copy_of(default_generator(ask_context.generator))
        found = search_space.maximize(posterior_mean(model, ask_context), ask_context, generator)
        actions = torch.cat([found, _observed_actions(ask_context)])
        return _means(model, ask_context.rows(actions)).max().item()


def _observed_actions(ask_context: AskContext) -> Tensor:
    return ask_context.observations.X[:, : ask_context.layout.num_actions]


def _means_of_choices(model: Model, ask_context: AskContext, choices: FiniteSpace) -> Tensor:
    return _means(model, ask_context.rows(choices.choices), choices.chunk)


def _means(model: Model, rows: Tensor, chunk: int = EVALUATION_CHUNK) -> Tensor:
    """Posterior means of rows ``n x (d + c + 1)``, each by itself: ``n``."""
    with torch.no_grad():
        parts = [model.posterior(part).mean for part in rows.unsqueeze(-2).split(chunk)]
    return torch.cat(parts).flatten()
