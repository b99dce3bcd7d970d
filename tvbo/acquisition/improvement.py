"""Expected improvement, and incumbents: the value that an improvement is measured against."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from botorch.acquisition import ExpectedImprovement, LogExpectedImprovement, PosteriorMean
from botorch.exceptions.warnings import NumericsWarning
from botorch.models.model import Model
from torch import Tensor

from tvbo.models.scale import marginals
from tvbo.optim.maximize import maximize, rows_at_once
from tvbo.randomness import copy_of, default_generator
from tvbo.spaces import AskContext, FiniteSpace

Incumbent = Callable[[Model, AskContext], Tensor]
"""A function from the model and the ask context to the value to improve on, standardized as the
outcomes of both are."""


@dataclass(frozen=True)
class BestObserved:
    r"""The largest outcome among the observations kept, :math:`\max_i y_i`.

    The incumbent of expected improvement in Bedi et al., Section 2, and in Nguyen et al. (2017).
    It depends on neither time nor context. Under drift, or in another context, it is stale: an
    outcome that was high once remains the incumbent until retention drops it. Under noise it is
    biased upwards, and more so the more outcomes there are. :class:`BestMean` has none of these
    faults.

    Before the first observation it is the value of :class:`MaxMean`.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> Tensor:
        """Return the value to improve on.

        Raises:
            ValueError: if there are no observations, and ``ask_context`` has no search space.
        """
        if len(ask_context.observations) == 0:
            return MaxMean()(model, ask_context)
        return ask_context.observations.Y.max()


@dataclass(frozen=True)
class BestMean:
    r"""The largest posterior mean among the observed actions, :math:`\max_i \mu(x_i)`.

    The means are evaluated at the present time and context, whenever and in whatever context an
    action was observed. Before the first observation it is the value of :class:`MaxMean`.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> Tensor:
        """Return the value to improve on.

        Raises:
            ValueError: if there are no observations, and ``ask_context`` has no search space.
        """
        if len(ask_context.observations) == 0:
            return MaxMean()(model, ask_context)
        return _means(model, ask_context.rows_observed()).max()


@dataclass(frozen=True)
class MaxMean:
    r"""The largest posterior mean of all actions, :math:`\max_x \mu(x)`, at time and context.

    Exact on a finite set. In a box it is found by the same search as the action, which may end in a
    local maximum and doubles the cost of the ask; it is never less than the value of
    :class:`BestMean`. With a constant prior mean and no observations, it is that constant.
    """

    def __call__(self, model: Model, ask_context: AskContext) -> Tensor:
        """Return the value to improve on.

        Raises:
            ValueError: if ``ask_context`` has no search space.
        """
        search_space = ask_context.search_space
        if search_space is None:
            raise ValueError("Expected an AskContext with a search_space. Got search_space=None.")
        if isinstance(search_space, FiniteSpace):
            return _means(model, ask_context.rows(search_space.choices)).max()
        # A copy, so that computing an incumbent does not change later draws.
        generator = copy_of(default_generator(ask_context.generator))
        found = maximize(PosteriorMean(model), search_space, ask_context, generator)
        observed = ask_context.observations.X[:, : ask_context.layout.num_actions]
        return _means(model, ask_context.rows(torch.cat([found, observed]))).max()


@dataclass(frozen=True)
class EI:
    r"""Expected improvement on the incumbent :math:`\xi` (Bedi et al., Section 2).

    .. math:: \sigma(x)\,\phi(z) + (\mu(x) - \xi)\,\Phi(z), \quad z = (\mu(x) - \xi) / \sigma(x)

    Far below the incumbent it underflows to 0, and so does its gradient; :class:`LogEI` has the
    same maximum and does not underflow.

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> ExpectedImprovement:
        """Return the acquisition function for this round."""
        with warnings.catch_warnings():
            # BoTorch warns against EI in favor of LogEI, as the docstring of this class does.
            warnings.simplefilter("ignore", NumericsWarning)
            return ExpectedImprovement(model, best_f=self.incumbent(model, ask_context))


@dataclass(frozen=True)
class LogEI:
    r"""Logarithm of :class:`EI`, exact where that underflows (Ament et al., 2023).

    Args:
        incumbent: Gives :math:`\xi`; default the best outcome observed.
    """

    incumbent: Incumbent = field(default_factory=BestObserved)

    def __call__(self, model: Model, ask_context: AskContext) -> LogExpectedImprovement:
        """Return the acquisition function for this round."""
        return LogExpectedImprovement(model, best_f=self.incumbent(model, ask_context))


def _means(model: Model, rows: Tensor) -> Tensor:
    """Return the posterior mean of each row, ``n``, for rows ``n x (d + c + 1)``."""
    size = rows_at_once(model) or len(rows)
    with torch.no_grad():
        parts = [marginals(model, part)[0] for part in rows.unsqueeze(-2).split(size)]
    return torch.cat(parts).flatten()
