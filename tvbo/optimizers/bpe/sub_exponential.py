"""Random delays with light tails, and upper bounds on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.values import check_count, check_not_negative, check_positive, check_probability


@dataclass(frozen=True)
class SubExponentialDelay:
    r"""A delay τ, in rounds, whose tails decrease at least exponentially.

    With parameters :math:`\xi, b` (Vakili et al., 2023, Assumption 3.3), for all
    :math:`|\eta| \le 1/b`,

    .. math:: E[\exp(\eta(\tau - E[\tau]))] \le \exp(\eta^2 \xi^2 / 2).

    Poisson, geometric and exponential delays are infinitely divisible, with jumps upwards only:
    :math:`2 K(\eta) / \eta^2`, with K the logarithm of the left side, grows with η, and the
    smallest valid :math:`\xi^2` is its value at :math:`\eta = 1/b`, for any ``b`` at which K is
    finite. The class methods use it.

    :meth:`upper_bound` is the formula as printed, which the authors' runs use. It is not a valid
    upper bound; that of :class:`SubExponentialTail` is.

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
            raise ValueError(
                "Expected b > 0 for a delay that is not constant: with 0 nothing would be added to "
                f"its mean. Got b=0 and xi={self.xi}."
            )

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
        return cls._smallest(rate, rate * (math.expm1(1 / b) - 1 / b), b)

    @classmethod
    def exponential(cls, mean: float, b: float | None = None) -> SubExponentialDelay:
        r"""Return an exponential delay: :math:`\xi^2 = -2 b^2 (\log(1 - m/b) + m/b)` with mean m.

        Args:
            mean: m.
            b: Larger than m; default 2 m.

        Raises:
            ValueError: if ``mean`` is not positive, or ``b`` not larger.
        """
        check_positive(mean=mean)
        b = 2 * mean if b is None else b
        _check_scale(b, mean)
        return cls._smallest(mean, -math.log1p(-mean / b) - mean / b, b)

    @classmethod
    def geometric(cls, probability: float, b: float | None = None) -> SubExponentialDelay:
        r"""Return a geometric delay on 0, 1, ...: failures before the first success, as in torch.

        :math:`\xi^2 = 2 b^2 (\log p - \log(1 - (1 - p) e^{1/b}) - (1 - p) / (p b))`.

        Args:
            probability: p, of success.
            b: Larger than :math:`-1 / \log(1 - p)`; default twice that.

        Raises:
            ValueError: if ``probability`` is not in (0, 1], or ``b`` too small.
        """
        if not 0 < probability <= 1:
            raise ValueError(f"Expected a probability of success in (0, 1]. Got {probability}.")
        if probability == 1:
            return cls.constant(0.0)
        p, q = probability, 1 - probability
        smallest = -1 / math.log1p(-p)
        b = 2 * smallest if b is None else b
        _check_scale(b, smallest)
        # log p - log(1 - q e^h), with 1 - q e^h = p - q (e^h - 1).
        log_moment = -math.log1p(-q / p * math.expm1(1 / b)) - q / (p * b)
        return cls._smallest(q / p, log_moment, b)

    @classmethod
    def _smallest(cls, mean: float, log_moment: float, b: float) -> SubExponentialDelay:
        """Return the delay of smallest ξ, from K(1/b), which rounding may make negative."""
        return cls(mean, b * math.sqrt(2 * max(0.0, log_moment)), b)

    def psi(self, t: int, delta: float) -> float:
        r"""Return the part of the upper bound above the mean, (5), in rounds.

        .. math:: \psi_t(\delta) = \min\left(\sqrt{2\xi^2 \log\tfrac{3t}{2\delta}},\;
            2b \log\tfrac{3t}{2\delta}\right)

        Args:
            t: Number of trials, at least 1.
            delta: In (0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """
        return min(self._parts(t, delta))

    def upper_bound(self, horizon: int, delta: float) -> float:
        r"""Return :math:`u_T(\delta) = E[\tau] + \psi_T(\delta / 2)`, in rounds, as printed.

        Args:
            horizon: T.
            delta: In (0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """
        return self.mean + self.psi(horizon, delta / 2)

    def _parts(self, t: int, delta: float) -> tuple[float, float]:
        check_count(t=t)
        check_probability(delta)
        log = math.log(1.5 * t / delta)
        return self.xi * math.sqrt(2 * log), 2 * self.b * log


@dataclass(frozen=True)
class SubExponentialTail:
    r"""An upper bound that holds for all of T delays at once, with probability ``1 - delta / 2``.

    Chernoff's bound gives :math:`P(\tau - E[\tau] \ge u) \le \exp(-\min(u^2 / 2\xi^2, u / 2b))`:
    the *larger* of the two terms of :math:`\psi_T`, where (5) prints the smaller. With the paper's
    own figures (T = 1000, ξ = 9, b = 1, δ = 0.01, Poisson delays of mean 50) the printed 75.2 holds
    for all delays with probability 0.69, not 0.995; the larger term gives 95.2. With it, and
    δ/2 inside :math:`\psi_T`, the failure probabilities of T delays add up to at most
    :math:`\delta / 3`. (For all t at once, as in Lemma A.1, the sum :math:`\sum 1/t` diverges.)

    The guarantee that the true maximizer is kept does not depend on this bound, since with fewer
    outcomes the confidence bounds are only wider. The bound on regret does.

    Args:
        delay: The delay's parameters.
    """

    delay: SubExponentialDelay

    def upper_bound(self, horizon: int, delta: float) -> float:
        """Return the upper bound in rounds.

        Args:
            horizon: T.
            delta: In (0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """
        return self.delay.mean + max(self.delay._parts(horizon, delta / 2))


def _check_scale(b: float, smallest: float) -> None:
    if not smallest < b < math.inf:
        raise ValueError(
            f"Expected b > {smallest:g} and finite: below that the moments do not exist. Got {b}."
        )
