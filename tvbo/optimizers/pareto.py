"""What is best by posterior means: one action, or the Pareto front of several objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import sample_simplex
from torch import Tensor

from tvbo.acquisition import UCB, ConstantBeta
from tvbo.acquisition.allowed import Outlook, allowed
from tvbo.acquisition.at_present import actions_of, means_of
from tvbo.optim.maximize import maximize
from tvbo.randomness import copy_of, default_generator, draw_seed
from tvbo.rounding import argmax
from tvbo.spaces import FiniteSpace

NUM_RANDOM = 2048
"""Random actions of an infinite search space among the candidates."""

NUM_SCALARIZATIONS = 10
"""Compromises between the objectives that are searched for, beside the best of each alone."""

MAX_TRIED = 50
"""Number of the newest observations among whose actions the best one is recorded with an ask."""

SAME_POINT = 1e-3
"""Distance of two points of a front, in ranges of the objectives, below which they are the same."""

AUGMENTATION = 0.05
"""Share of the sum of the objectives in a Chebyshev scalarization, without which actions that are
better in one objective alone would count the same."""


def best_action(outlook: Outlook) -> Tensor:
    """Return the feasible action with the largest posterior mean of the first outcome, ``1 x d``.

    Args:
        outlook: As of :func:`pareto_actions`.

    Raises:
        ValueError: if there are several objectives.
    """
    if outlook.goals.num_objectives > 1:
        raise ValueError(
            "Expected one objective: of several, front() returns the best compromises. Got "
            f"{', '.join(outlook.goals.names[: outlook.goals.num_objectives])}."
        )
    present = outlook.ask_context
    space, generator = present.search_space, default_generator(present.generator)
    assert space is not None
    present = replace(present, generator=copy_of(generator))
    # The posterior mean, which has a closed form where the upper bound has one.
    acq_function = UCB(ConstantBeta(0.0))(outlook.models[0], present)
    acq_function = allowed(acq_function, replace(outlook, ask_context=present))
    return maximize(acq_function, space, present, copy_of(generator))


def best_tried(outlook: Outlook) -> list[float]:
    """Return the action, of those tried last, that is best now, ``d``.

    Nothing before any was tried, and of several objectives.

    Args:
        outlook: As of :func:`pareto_actions`.
    """
    present = outlook.ask_context
    tried = present.observations.X[-MAX_TRIED:, : present.layout.num_actions]
    if outlook.goals.num_objectives > 1 or len(tried) == 0:
        return []
    among = replace(present, search_space=FiniteSpace(tried.unique(dim=0)))
    return best_action(replace(outlook, ask_context=among))[0].tolist()


def pareto_actions(outlook: Outlook, num_points: int) -> Tensor:
    """Return actions whose posterior means are Pareto-optimal, of those that are feasible enough.

    Candidates are all actions of a finite set; otherwise the maximizers of augmented Chebyshev
    scalarizations of the means, the observed actions, and 2,048 random ones.

    Args:
        outlook: Models, goals, and how probable it is that an action is feasible and succeeds;
            the latter is to be at least one half; and the present, whose generator is drawn from.
        num_points: Largest number of actions; of more, those far from one another.

    Returns:
        ``n x d``, by the first objective, the best first. Where none is feasible enough, the one
        that most probably is.
    """
    goals, ask_context = outlook.goals, outlook.ask_context
    objectives = outlook.models[: goals.num_objectives]
    X = _candidates(objectives, outlook)
    with torch.no_grad():
        X = _probable(X, outlook.log_success(ask_context.rows(X)), math.log(0.5))
        # The penalty of an optimum at the limit is rounded.
        enough = math.log(goals.min_feasibility) - 0.01
        X = _probable(X, outlook.log_constraints(ask_context.rows(X)), enough)
        means = means_of(objectives, ask_context.rows(X).unsqueeze(-2))
    best = is_non_dominated(means)
    X, means = X[best], means[best]
    chosen = _spread(means, num_points)
    order = means[chosen, 0].argsort(descending=True)
    return X[chosen][order]


def _probable(X: Tensor, log_probability: Tensor, enough: float) -> Tensor:
    """Return the actions that are probable enough, or the most probable one."""
    return X[log_probability >= min(enough, log_probability.max().item())]


def _candidates(objectives: Sequence[Model], outlook: Outlook) -> Tensor:
    ask_context = outlook.ask_context
    space, generator = ask_context.search_space, default_generator(ask_context.generator)
    assert space is not None
    if isinstance(space, FiniteSpace):
        return space.choices
    k = len(objectives)
    weights = sample_simplex(
        k, NUM_SCALARIZATIONS, qmc=True, seed=draw_seed(generator), dtype=torch.float64
    )
    actions = actions_of(ask_context, generator, NUM_RANDOM)
    stand_ins = ask_context.rows(actions).unsqueeze(-2)
    found = [actions, ask_context.observations.X[:, : ask_context.layout.num_actions]]
    for weight in torch.cat([torch.eye(k).to(weights), weights]):
        acq_function: AcquisitionFunction = _Scalarized(objectives, weight, stand_ins)
        acq_function = allowed(acq_function, outlook)
        found.append(maximize(acq_function, space, ask_context, generator))
    return torch.unique(torch.cat(found), dim=0)


def _spread(means: Tensor, num_points: int) -> list[int]:
    """Return the places of points far from one another, the best by the first objective first.

    Args:
        means: ``n x k``.
        num_points: Largest number of points; fewer are returned where others repeat them.
    """
    low, high = means.aminmax(dim=0)
    scaled = (means - low) / torch.where(high > low, high - low, 1.0)
    chosen = [int(argmax(means[:, 0]))]
    distance = (scaled - scaled[chosen[0]]).norm(dim=-1)
    while len(chosen) < num_points and distance.max() > SAME_POINT:
        chosen.append(int(argmax(distance)))
        distance = torch.minimum(distance, (scaled - scaled[chosen[-1]]).norm(dim=-1))
    return chosen


class _Scalarized(AcquisitionFunction):
    """Augmented Chebyshev scalarization of posterior means.

    Args:
        models: The model of each objective.
        weight: ``k``, one for each.
        stand_ins: Rows ``b x 1 x d`` by whose range of means each objective is scaled.
    """

    def __init__(self, models: Sequence[Model], weight: Tensor, stand_ins: Tensor):
        super().__init__(models[0])
        # Not registered, as in Allowed.
        self._parts = tuple(models), weight
        with torch.no_grad():
            means = means_of(models, stand_ins)
        self._low, high = means.aminmax(dim=0)
        self._range = torch.where(high > self._low, high - self._low, 1.0)

    def forward(self, X: Tensor) -> Tensor:
        """Return the scalarized means, ``b``, at rows ``b x 1 x d``."""
        shares = (means_of(self._parts[0], X) - self._low) / self._range
        weighted = self._parts[1] * (shares - 1)
        # A weight of zero leaves an objective to the sum.
        return weighted.amin(dim=-1) + AUGMENTATION * shares.sum(dim=-1)
