r"""Sub-exponential delays (Vakili et al., 2023): two distributions, and a bound on many.

For any ``b``, :math:`\xi^2` is the smallest valid one
(:class:`tvbo.optimizers.bpe.SubExponentialDelay`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvbo.optimizers.bpe import SubExponentialDelay
from tvbo.values import check_count, check_positive, check_probability


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
        check_count(horizon=horizon)
        check_probability(delta=delta)
        log = math.log(3 * horizon / delta)
        return self.delay.mean + max(self.delay.xi * math.sqrt(2 * log), 2 * self.delay.b * log)


def exponential_delay(mean: float, b: float | None = None) -> SubExponentialDelay:
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
    return _smallest(mean, -math.log1p(-mean / b) - mean / b, b)


def geometric_delay(probability: float, b: float | None = None) -> SubExponentialDelay:
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
        return SubExponentialDelay.constant(0.0)
    p, q = probability, 1 - probability
    smallest = -1 / math.log1p(-p)
    b = 2 * smallest if b is None else b
    _check_scale(b, smallest)
    # log p - log(1 - q e^h), with 1 - q e^h = p - q (e^h - 1).
    log_moment = -math.log1p(-q / p * math.expm1(1 / b)) - q / (p * b)
    return _smallest(q / p, log_moment, b)


def _smallest(mean: float, log_moment: float, b: float) -> SubExponentialDelay:
    """Return the delay of smallest ξ, from K(1/b), which rounding may make negative."""
    return SubExponentialDelay(mean, b * math.sqrt(2 * max(0.0, log_moment)), b)


def _check_scale(b: float, smallest: float) -> None:
    if not smallest < b < math.inf:
        raise ValueError(
            f"Expected b > {smallest:g} and finite: below that the moments do not exist. Got {b}."
        )
