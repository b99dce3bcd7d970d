"""What a retention policy knows before an outcome, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    r"""The model's prediction for a chosen action, made before its outcome is known.

    Args:
        t: Time of the action.
        mean: Posterior mean :math:`\mu` of the function there.
        variance: Posterior variance :math:`\sigma_D^2` of the function, without noise.
        noise_variance: Variance :math:`\sigma^2` of the noise in an outcome.
        trial_id: Id of the trial, which distinguishes trials of the same time.
    """

    t: float
    mean: float
    variance: float
    noise_variance: float
    trial_id: int = 0

    @property
    def information_gain(self) -> float:
        r"""Expected information gain :math:`\tfrac{1}{2}\log(1 + \sigma_D^2 / \sigma^2)` in nats.

        The conditional entropy of the outcome minus the entropy of the noise. Infinite where the
        noise variance is 0 and the posterior variance is not.
        """
        if self.noise_variance == 0:
            return math.inf if self.variance > 0 else 0.0
        return 0.5 * math.log1p(self.variance / self.noise_variance)

    def standardized(self, Y: float) -> float:
        r"""Return :math:`(y - \mu) / \sqrt{\sigma_D^2 + \sigma^2}`.

        It is standard normal if the model is right.

        Raises:
            ZeroDivisionError: if both variances are 0.
        """
        return (Y - self.mean) / math.sqrt(self.variance + self.noise_variance)


@dataclass(frozen=True)
class Rejection:
    """Why an outcome will not enter the model.

    Args:
        reason: The reason in words, with its numbers.
        skip: Whether the action need not be evaluated at all.
    """

    reason: str
    skip: bool
