"""An acquisition function over the actions that probably meet all constraints and succeed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.models.model import Model
from botorch.utils.probability.utils import log_prob_normal_in
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import softplus

from tvbo.acquisition.at_present import NUM_CANDIDATES, AtPresent, actions_of
from tvbo.acquisition.goals import Goals
from tvbo.acquisition.success import SuccessModel
from tvbo.acquisition.ucb import Acquisition, KnownValues
from tvbo.models.closed_form import Array
from tvbo.models.scale import StandardizedModel, marginals, standardized
from tvbo.optim.maximize import ClosedFormAcquisition
from tvbo.randomness import default_generator
from tvbo.recommendation import Recommendation
from tvbo.spaces import AskContext
from tvbo.spaces.labels import Labels

LEAST_DEVIATION = 1e-9
"""Least standard deviation for a probability, as a share of the size of mean and limit."""

UNLIMITED = 1e9
"""Limit of standardized outcomes where there is none."""

PENALTY = 100.0
"""What a shortfall of 1 in log probability costs, in ranges of the acquisition function."""

SMOOTHNESS = 0.001
"""Shortfall within which the penalty sets in: gradients must not jump where the maximum is."""

MIN_SUCCESS = 0.6
"""Probability with which an action must succeed, if there is one that does."""

WEIGHT = 0.9
"""What 1 in log probability of success counts for, in ranges of the acquisition function."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is expected of an action at the present: its outcomes, and whether it is allowed.

    Args:
        outcomes: The posterior of each outcome.
        goals: What is sought of the outcomes, in the user's units.
        ask_context: The present, with observations in the user's units.
        success: The probability that a trial succeeds; None while none has failed.
    """

    outcomes: Sequence[StandardizedModel]
    goals: Goals
    ask_context: AskContext
    success: SuccessModel | None = None

    @property
    def models(self) -> list[Model]:
        """The models of standardized outcomes."""
        return [each.model for each in self.outcomes]

    @cached_property
    def standardized_goals(self) -> Goals:
        """The goals in the units of the models."""
        return self.goals.standardized([each.transform for each in self.outcomes])

    @property
    def is_certain(self) -> bool:
        """Whether there is neither a constraint nor a failure."""
        return not self.goals.limits and self.success is None

    def recommendations(self, X: Tensor, labels: Labels) -> list[Recommendation]:
        """Return what is expected of actions, ``n x d``, in the user's units."""
        rows, names = self.ask_context.rows(X), self.goals.names
        parts = zip(*(each.moments(rows) for each in self.outcomes), strict=True)
        mean, variance = (torch.stack(each, dim=-1) for each in parts)
        moments = torch.stack([self.goals.signs * mean, variance.sqrt()], dim=-1).tolist()
        probabilities, expected = self.probabilities(rows), []
        given: dict[str, Any] = {"t": self.ask_context.t, "context": self.ask_context.context}
        given |= {"labels": labels, "minimize": names[0] in self.goals.minimized}
        for i, (first, *others) in enumerate(moments):
            given |= {name: each[i].item() for name, each in probabilities.items()}
            given["others"] = dict(zip(names[1:], map(tuple, others), strict=True))
            expected.append(Recommendation(X[i : i + 1], *first, **given))
        return expected

    def log_constraints(self, rows: Tensor) -> Tensor:
        """Return the log probability that all constraints hold, ``...``, at rows ``... x d``.

        They are on the functions, not on outcomes with their noise, and the outcomes are
        independent given the rows.
        """
        total, models = rows.new_zeros(rows.shape[:-1]), self.models
        for place, low, high in self.standardized_goals.limits:
            moments = marginals(models[place], rows.reshape(-1, 1, rows.shape[-1]))
            mean, variance = (each.view(total.shape) for each in moments)
            size = max(abs(limit) for limit in (low, high) if math.isfinite(limit))
            least = LEAST_DEVIATION * (mean.detach().abs() + size)
            deviation = torch.maximum(variance.sqrt(), least)
            # Infinite limits would have no gradients.
            a, b = max(low, -UNLIMITED) - mean, min(high, UNLIMITED) - mean
            total = total + log_prob_normal_in(a / deviation, b / deviation)
        return total

    def log_success(self, rows: Tensor) -> Tensor:
        """Return the log probability of success, ``...``, at rows ``... x d``."""
        if self.success is None:
            return rows.new_zeros(rows.shape[:-1])
        return self.success.log_probability(rows)

    def probabilities(self, rows: Tensor) -> dict[str, Tensor]:
        """Return both by name, ``n``, at rows ``n x d``, where there is a constraint or failure."""
        found = {}
        with torch.no_grad():
            if self.goals.limits:
                found["feasibility"] = self.log_constraints(rows).exp()
            if self.success is not None:
                found["probability_of_success"] = self.log_success(rows).exp()
        return found


class Allowed(AcquisitionFunction):
    r"""An acquisition function less what an action may break.

    With :math:`p(x)` the probability that all constraints hold at an action now, the action that
    maximizes :math:`\alpha` among those with :math:`p(x) \geq p_0` is found as the maximum of

    .. math:: \alpha(x) - w \max(0, \log p_0 - \log p(x)),

    an exact penalty whose corner is rounded. Where no action reaches :math:`p_0`, its maximum is
    near that of :math:`p`. The probability of success :math:`s(x)` is required in the same way to
    be 0.6, and :math:`v \log s(x)` is added, by which a failure is weighed against a gain: ``v`` is
    1 where :math:`\alpha` is a logarithm, such as of an expected improvement, whose product with
    :math:`s` is meant; else three quarters of the range of :math:`\alpha`.

    Args:
        acq_function: :math:`\alpha`, over rows ``b x q x d``; in a batch shortfalls add up, and the
            average of :math:`\log s` counts.
        outlook: :math:`p` and :math:`s`, and the present, whose actions say how far :math:`\alpha`
            ranges.
    """

    def __init__(self, acq_function: AcquisitionFunction, outlook: Outlook):
        super().__init__(acq_function.model)
        self.raw_samples = getattr(acq_function, "raw_samples", None)
        # Not registered: acquisition functions are moved to the device of ``X`` at each call.
        self._parts = acq_function, outlook
        spread = _range_of(acq_function, outlook.ask_context)
        self.penalty = PENALTY * spread
        self.weight = 1.0 if getattr(acq_function, "_log", False) else WEIGHT * spread

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``b``, at rows ``b x q x d``."""
        acq_function, outlook = self._parts
        log_success = outlook.log_success(X)
        value: Tensor = acq_function(X) + self.weight * log_success.mean(dim=-1)
        least = outlook.goals.min_feasibility
        for log_probability, p in ((log_success, MIN_SUCCESS), (outlook.log_constraints(X), least)):
            missing = (math.log(p) - log_probability) / SMOOTHNESS
            value = value - self.penalty * SMOOTHNESS * softplus(missing).sum(dim=-1)
        return value


class ClosedFormAllowed(Allowed):
    """The same in closed form, of an acquisition function in closed form without constraints."""

    def value_and_gradient(self, X: Array) -> tuple[Array, Array]:
        """Return the values ``b`` at rows ``b x d``, and gradients ``b x d``."""
        acq_function, outlook = self._parts
        values, gradients = cast(ClosedFormAcquisition, acq_function).value_and_gradient(X)
        assert outlook.success is not None
        logs, pullback = outlook.success.evaluate(X, with_gradients=True)
        assert pullback is not None
        missing = (math.log(MIN_SUCCESS) - logs) / SMOOTHNESS
        shortfall = SMOOTHNESS * np.logaddexp(0.0, missing)
        values = values + (self.weight * logs - self.penalty * shortfall)[0]
        return values, gradients + pullback(self.weight + self.penalty * expit(missing))


def allowed(acq_function: AcquisitionFunction, outlook: Outlook) -> AcquisitionFunction:
    """Return an acquisition function under the constraints that knows of failures.

    Args:
        acq_function: An acquisition function of the first outcome, or of all objectives.
        outlook: How probable it is that an action is feasible and succeeds.
    """
    if outlook.is_certain:
        return acq_function
    has_form = isinstance(acq_function, ClosedFormAcquisition) and not outlook.goals.limits
    kind = ClosedFormAllowed if has_form else Allowed
    found = kind(acq_function, outlook)
    if not isinstance(acq_function, KnownValues):
        return found
    # Its values are known at the candidates alone.
    with torch.no_grad():
        values = found(outlook.ask_context.rows(acq_function.candidates).unsqueeze(-2))
    return KnownValues(acq_function.model, acq_function.search_space, values)


def _range_of(acq_function: AcquisitionFunction, ask_context: AskContext) -> float:
    """Return how far an acquisition function ranges over the actions, 1 where it is constant."""
    if isinstance(acq_function, KnownValues):
        actions = acq_function.candidates
    else:
        actions = actions_of(ask_context, default_generator(ask_context.generator))
    # Every so many of a large finite set.
    actions = actions[:: -(-len(actions) // NUM_CANDIDATES)]
    with torch.no_grad():
        values = acq_function(ask_context.rows(actions).unsqueeze(-2))
    values = values[values.isfinite()]
    spread: float = (values.max() - values.min()).item() if len(values) else 0.0
    return spread or 1.0


def acquisition_of(acquisition: Acquisition, outlook: Outlook) -> AcquisitionFunction:
    """Return an acquisition function at the present, of one or several objectives.

    Incumbents and baselines are actions that are feasible now and succeed, more probably than not;
    without such, the one that most probably is.

    Args:
        acquisition: Builds the acquisition function. Of several objectives, noisy expected
            hypervolume improvement takes the place of one that is not of BoTorch.
        outlook: Models, goals and the present.
    """
    models, goals, ask_context = outlook.models, outlook.goals, outlook.ask_context
    observations = standardized(ask_context.observations, outlook.outcomes[0].transform)
    if len(observations) > 0 and not outlook.is_certain:
        rows = ask_context.rows_observed()
        with torch.no_grad():
            probability = outlook.log_constraints(rows) + outlook.log_success(rows)
        enough = min(math.log(0.5), probability.max().item())
        observations = observations[probability >= enough]
    ask_context = replace(ask_context, observations=observations)
    objectives = models[: len(goals.thresholds)]
    if len(objectives) == 1:
        acq_function = acquisition(models[0], ask_context)
    else:
        if not isinstance(acquisition, AtPresent):
            acquisition = AtPresent(
                partial(qLogNoisyExpectedHypervolumeImprovement, prune_baseline=True)
            )
        thresholds = outlook.standardized_goals.thresholds
        acq_function = acquisition.of_objectives(objectives, thresholds, ask_context)
    return allowed(acq_function, outlook)
