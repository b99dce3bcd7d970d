"""What a retention policy is asked, and what it may know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.observations import Observations

if TYPE_CHECKING:
    from tvbo.retention.chain import Chain


@dataclass(frozen=True)
class Prediction:
    r"""What the model says of a chosen action before its outcome is known.

    Args:
        t: Time of the action.
        mean: Posterior mean :math:`\mu` of the function there.
        variance: Posterior variance :math:`\sigma_D^2` of the function, without noise.
        noise_variance: Variance :math:`\sigma^2` of the noise in an outcome.
        trial_id: Number of the trial, which tells apart what was chosen at one time.
    """

    t: float
    mean: float
    variance: float
    noise_variance: float
    trial_id: int = 0

    @property
    def information_gain(self) -> float:
        r""":math:`\tfrac{1}{2}\log(1 + \sigma_D^2 / \sigma^2)` in nats.

        What an outcome is expected to tell of the function: its conditional entropy less that of
        the noise. Infinite where there is no noise.
        """
        if self.noise_variance == 0:
            return math.inf if self.variance > 0 else 0.0
        return 0.5 * math.log1p(self.variance / self.noise_variance)

    def standardized(self, Y: float) -> float:
        r""":math:`(y - \mu) / \sqrt{\sigma_D^2 + \sigma^2}`: standard normal if the model is right.

        Raises:
            ZeroDivisionError: if the outcome was certain.
        """
        return (Y - self.mean) / math.sqrt(self.variance + self.noise_variance)


@dataclass(frozen=True)
class Refusal:
    """Why an outcome will not enter the model.

    Args:
        reason: In words, with the figures.
        skip: Whether the action need not be evaluated at all.
    """

    reason: str
    skip: bool


class Retention:
    """A rule that answers which observations stay, and whether another is worth having.

    A subclass overrides what it has an opinion on. Policies are joined by ``&``: an observation
    stays, and an outcome enters, if all agree.
    """

    needs_prediction: bool = False
    """Whether :meth:`judge` and :meth:`learn` are to be called: it costs a prediction a round."""

    def keep(self, observations: Observations, model: Model | None, t: float) -> Tensor:
        """A mask, ``n``, over the observations: True stays, False is dropped for good.

        It may be asked without consequences, by a recommendation: nothing is changed here.

        Args:
            observations: What the optimizer holds; the last column of X is time.
            model: The model of the round before, None in the first round.
            t: The present time.
        """
        return torch.ones(len(observations), dtype=torch.bool)

    def judge(self, prediction: Prediction, num_held: int) -> Refusal | None:
        """Why the outcome of a chosen action will not enter the model; None if it will.

        Args:
            prediction: What the model says of the action.
            num_held: Number of observations held.
        """
        return None

    def learn(self, prediction: Prediction, Y: float) -> None:
        """Take note of an outcome, whether it enters the model or not.

        Args:
            prediction: What the model said when the action was chosen.
            Y: The outcome.
        """

    def __and__(self, other: Retention) -> Chain:
        """Both rules."""
        from tvbo.retention.chain import Chain

        return Chain(self, other)
