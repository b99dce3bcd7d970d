"""How late outcomes may be: known bounds on delays with light tails, or one that is estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tvbo.values import check_count, check_not_negative, check_positive, check_probability

GRID = 201
"""Number of points at which the moment condition is evaluated on an estimated distribution."""


@dataclass(frozen=True)
class SubExponentialDelay:
    r"""A delay τ, in rounds, whose tails decrease at least exponentially.

    With parameters :math:`\xi, b` (Vakili et al., 2023, Assumption 3.3), for all
    :math:`|\eta| \le 1/b`,

    .. math:: E[\exp(\eta(\tau - E[\tau]))] \le \exp(\eta^2 \xi^2 / 2).

    Poisson, geometric and exponential delays are infinitely divisible, with jumps upwards only:
    :math:`2 K(\eta) / \eta^2`, with K the logarithm of the left side, grows with η, and the
    smallest valid :math:`\xi^2` is its value at :math:`\eta = 1/b`, for any ``b`` at which K is
    finite.

    :meth:`upper_bound` is the formula as printed, which the authors' runs use. It is not a valid
    upper bound: that needs the larger of its two terms.

    Args:
        mean: :math:`E[\tau]`, in rounds.
        xi: ξ, in rounds; 0 for a delay that is constant.
        b: In rounds; 0 as well for a delay that is constant.

    Raises:
        ValueError: if one of them is negative or not finite, or ``b`` is 0 and ``xi`` is not.
    """

    mean: float
    xi: float
    b: float

    def __post_init__(self) -> None:
        check_not_negative(mean=self.mean, xi=self.xi, b=self.b)
        if self.b == 0 < self.xi:
            raise ValueError(f"Expected b > 0 for a delay that varies. Got b=0, xi={self.xi}.")

    @classmethod
    def constant(cls, delay: float) -> SubExponentialDelay:
        """Return a constant delay; 0 means that outcomes arrive at once."""
        return cls(delay, 0.0, 0.0)

    @classmethod
    def poisson(cls, rate: float, b: float = 1.0) -> SubExponentialDelay:
        r"""Return a Poisson delay: :math:`\xi^2 = 2 \lambda b^2 (e^{1/b} - 1 - 1/b)`.

        The paper's ξ = 9, b = 1 is valid up to a rate of 56.

        Args:
            rate: λ, the mean.
            b: Any positive number.

        Raises:
            ValueError: if ``rate`` is negative, or ``b`` not positive.
        """
        check_not_negative(rate=rate)
        check_positive(b=b)
        # K(1/b), which rounding may make negative.
        log_moment = max(0.0, rate * (math.expm1(1 / b) - 1 / b))
        return cls(rate, b * math.sqrt(2 * log_moment), b)

    def upper_bound(self, horizon: int, delta: float) -> float:
        r"""Return :math:`u_T(\delta) = E[\tau] + \psi_T(\delta / 2)`, in rounds, as printed.

        .. math:: \psi_t(\delta) = \min\left(\sqrt{2\xi^2 \log\tfrac{3t}{2\delta}},\;
            2b \log\tfrac{3t}{2\delta}\right)

        Args:
            horizon: T.
            delta: In (0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """
        check_count(horizon=horizon)
        check_probability(delta=delta)
        log = math.log(3 * horizon / delta)
        return self.mean + min(self.xi * math.sqrt(2 * log), 2 * self.b * log)


NO_DELAY = SubExponentialDelay.constant(0.0)


@runtime_checkable
class DelayBound(Protocol):
    """Upper bound on delays, such as :class:`tvbo.optimizers.bpe.SubExponentialDelay`."""

    def upper_bound(self, horizon: int, delta: float) -> float:
        """Return the number of asks within which each of ``horizon`` outcomes should arrive."""


def estimate_delay(arrived: Sequence[int], awaited: Sequence[int]) -> SubExponentialDelay:
    r"""Return the parameters of a delay in whole rounds from what was seen of it.

    The distribution is the Kaplan-Meier estimate: from the arrived outcomes alone it would be
    biased towards short delays, and an outcome pending for ``a`` rounds is a censored observation,
    whose delay is larger than ``a``. Delays are assumed independent of the time at which a trial
    was asked. The probability beyond the largest observed delay is assigned to the next round after
    the longest wait (Efron's rule); where that probability is large, the estimated mean is too
    small.

    The mean is that of the distribution, ``b`` its standard deviation, and :math:`\xi^2` the
    largest :math:`2 K(\eta) / \eta^2` for :math:`|\eta| \le 1/b`, with K the logarithm of the
    centered moments. The estimation error is ignored.

    Args:
        arrived: Delays of outcomes that arrived.
        awaited: For each pending outcome, the rounds since its trial was asked; for each lost one,
            the rounds until it was lost.

    Raises:
        ValueError: if there is neither.
    """
    # Imported here since importing scipy.stats takes longer than the rest of tvbo.
    from scipy.stats import CensoredData, ecdf

    if len(arrived) + len(awaited) == 0:
        raise ValueError("Expected at least one delay, arrived or awaited. Got none.")
    after_all = max([*arrived, *awaited]) + 1
    if len(arrived) == 0:
        return SubExponentialDelay.constant(float(after_all))
    survival = ecdf(CensoredData(uncensored=arrived, right=awaited)).sf
    values = np.append(survival.quantiles, after_all)
    probabilities = -np.diff(survival.probabilities, prepend=1.0, append=0.0)
    mean = probabilities @ values
    centered = values - mean
    variance = probabilities @ centered**2
    if variance == 0:
        return SubExponentialDelay.constant(float(mean))
    b = np.sqrt(variance)
    # η = 0 is left out: the limit there is the variance.
    eta = np.linspace(-1, 1, GRID)[np.arange(GRID) != GRID // 2] / b
    log_moment = np.log(np.exp(np.outer(eta, centered)) @ probabilities)
    xi_squared = max(variance, (2 * log_moment / eta**2).max())
    return SubExponentialDelay(float(mean), float(np.sqrt(xi_squared)), float(b))
